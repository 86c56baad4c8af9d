# What developers and CI run; `make help` lists it. Everything is installed into .venv and other folders .venv-*.

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
INTEGRATIONS := .venv-integrations
OLDER_SCRAPY := .venv-older-scrapy

# With the lowest versions that setup.cfg allows: the unit tests whose modules use one of those packages, those of the
# Redis connection and of Scrapy's engine, and the crawls on Redis. Left out are tests of our own logic, which runs alike
# on every version; crawls in process, which go the same way through Scrapy; tests marked `server_faults`; and crawls
# whose fact is the frontier's: the Scrapy that they go through is that of the other crawls.
PACKAGES := scrapy|twisted|redis|hiredis|msgpack|rich|itemadapter|protego|tldextract|prometheus_client|jinja2|starlette|uvicorn
OLDEST_UNIT = $$(grep -rlE --include='test_*.py' '^(from|import) ($(PACKAGES))\b' tests/unit) \
    $$(find tests/unit -name 'test_engine.py')
OLDEST_LEFT_OUT := budgets delays drain floods gone interruption kept kills limits lineage losses migrated order policies \
    pushed quick_start real_input revisit scaling seen_name sessions stalls too_large unrecorded versions
OLDEST_TESTS = $$(printf '%s\n' $(OLDEST_UNIT) | sort -u) tests/redis tests/crawl \
    $(OLDEST_LEFT_OUT:%=--ignore=tests/crawl/test_%.py) -m 'not server_faults and not in_process'

# With every other server of this machine, since the first run has used one: what touches Redis and may differ by the
# server. REDIS_TESTS="tests/redis -m 'not in_process'" on the command line runs all that touches it.
REDIS_TESTS := tests/contract tests/lua tests/redis -m '(not in_process and not any_server) or every_server'

# For the daily round: single parts but the slow ones, what workers may rely on, and crawls of both kinds.
QUICK_TESTS := tests/unit tests/redis tests/docs tests/contract/test_batches.py tests/contract/test_leases.py \
    tests/contract/test_order.py tests/contract/test_end.py tests/crawl/test_end.py \
    -m 'not server_faults and not slow'

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Without bytecode each of hundreds of processes compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Processes that run tests side by side; one that has none left takes some of another's. Three for each of two cores, since
# tests wait for most of their time.
JOBS := 6
PYTEST := python -m pytest --numprocesses $(JOBS) --dist worksteal

# One process for each server, in which all tests run.
EACH_SERVER := python -m pytest --dist each

# For tests each of which starts two browsers or a server of its own.
ONE_BY_ONE := python -m pytest

# Schedules of the simulation that `make soak` runs, beyond those of the tests.
SEEDS := 1000000

# Failovers in each of the crawls of `make failovers`.
FAILOVERS := 10

.PHONY: help test test-quick test-newest test-oldest test-redis test-integrations test-networks environments checks collected soak lint luacheck tls-server chromium format docs dist demo demo-dashboard bench bench-quick bench-write chaos failovers clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

test: environments checks test-newest test-oldest test-redis ## everything: lint, all tests, lowest versions, every Redis and Valkey

test-quick: $(VENV)/installed ## the quick tests of each part and a few crawls, in a minute; no lint
	$(VENV)/bin/$(PYTEST) $(QUICK_TESTS)

test-newest: $(VENV)/installed ## all tests on the newest Scrapy
	$(VENV)/bin/$(PYTEST)

test-oldest: $(OLDEST)/installed ## the tests that touch Scrapy, on the lowest versions
	$(OLDEST)/bin/$(PYTEST) $(OLDEST_TESTS)

test-redis: $(VENV)/installed ## the tests that touch Redis, on the other servers of this machine
	@set -e; servers=$$(PYTHONPATH=example_project $(VENV)/bin/python scripts/list_redis_servers.py); \
	each=$$(printf -- '--tx popen//env:PRIOQUEUE_TEST_REDIS=%s\n' $$servers); \
	[ -z "$$servers" ] || $(VENV)/bin/$(EACH_SERVER) $$each $(REDIS_TESTS)

test-integrations: $(INTEGRATIONS)/installed $(OLDER_SCRAPY)/installed chromium ## the tests with other packages, see docs/integrations.md, and of deploy/ against schemas; no part of `make test`
	$(INTEGRATIONS)/bin/$(ONE_BY_ONE) tests/integrations tests/deploy --ignore=tests/integrations/older_scrapy
	$(OLDER_SCRAPY)/bin/$(ONE_BY_ONE) tests/integrations/older_scrapy

test-networks: $(VENV)/installed ## all kinds of cuts between network namespaces, a few of which `make test` runs; two minutes
	PRIOQUEUE_TEST_NETWORKS=all $(VENV)/bin/$(PYTEST) tests/faults/test_networks.py

soak: $(VENV)/installed ## simulate SEEDS schedules, a million if not told otherwise; takes a day
	PYTHONPATH=example_project:benchmarks $(VENV)/bin/python -m tests.simulation --seeds $(SEEDS) --first 150

lint: $(VENV)/installed luacheck ## style, types, imports, Lua
	$(VENV)/bin/ruff check --output-format concise .
	$(VENV)/bin/ruff format --check .
	MYPY_NUM_WORKERS=2 $(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python scripts/lint_lua.py

format: $(VENV)/installed ## mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/installed ## build the documentation site in build/site
	$(VENV)/bin/python -m sphinx -n -W --keep-going -d build/site-read docs build/site

dist: $(VENV)/installed ## build the distributions in dist/, check them, and install each in a new environment
	rm -rf dist
	$(VENV)/bin/python -m build
	scripts/check_dist $(VENV)/bin/python dist

demo: $(VENV)/installed ## crawl a shop with two workers, one of which is killed
	$(VENV)/bin/python example_project/demo.py

demo-dashboard: $(VENV)/installed ## crawl a shop and kill workers until Ctrl-C, and show the crawl on the dashboard
	$(VENV)/bin/python example_project/demo_dashboard.py

bench: $(VENV)/installed ## run the benchmarks and write docs/performance.md; ONLY="crawl fleet" some, QUICK=1 a short form
	$(VENV)/bin/python -m pip install -qq -e '.[bench]'
	PYTHONPATH=example_project $(VENV)/bin/python benchmarks/suite.py $(ONLY) $(if $(QUICK),--quick)

bench-quick: ## the benchmarks' short form, under three minutes; its page is in build/benchmarks
	$(MAKE) bench QUICK=1

bench-write: $(VENV)/installed ## write docs/performance.md and docs/sizing.md again from the results there are
	PYTHONPATH=example_project $(VENV)/bin/python benchmarks/suite.py --write

chaos: $(VENV)/installed ## crawl a shop while everything goes wrong; takes minutes
	PYTHONPATH=example_project $(VENV)/bin/python benchmarks/chaos.py

failovers: $(VENV)/installed ## replace the node of a crawl FAILOVERS times in each of several ways, by Sentinels and in a cluster; takes minutes
	PRIOQUEUE_TEST_FAILOVERS=$(FAILOVERS) $(VENV)/bin/$(ONE_BY_ONE) -rP tests/faults/test_failover.py tests/faults/test_clusters.py

clean: ## remove what the other targets have made
	rm -rf $(VENV) $(OLDEST) $(INTEGRATIONS) $(OLDER_SCRAPY) build dist *.egg-info .hypothesis .*_cache

# At once, since each waits for the network or keeps one core busy.
environments:
	@$(MAKE) --no-print-directory --jobs luacheck tls-server $(VENV)/installed

# Beside the linters, which keep one core busy, the other environment is installed, and the byte code of all test modules
# is made. Without it each of the processes that run tests would make all of it.
checks:
	@$(MAKE) --no-print-directory --jobs lint collected $(OLDEST)/installed

collected: $(VENV)/installed
	$(VENV)/bin/python -m pytest --collect-only -qq >/dev/null

luacheck:
	@command -v luacheck >/dev/null || scripts/install_debian_package lua-check

# The servers from PyPI don't speak TLS, Debian's does; without it the tests that need it are skipped. Only for CI, since a
# service would be started on other machines.
tls-server:
	@[ -z "$(CI)" ] || command -v redis-server >/dev/null || scripts/install_debian_package redis-server || true

chromium:
	@command -v chromium >/dev/null || scripts/install_debian_package chromium

$(VENV)/installed: setup.cfg pyproject.toml scripts/make_venv
	scripts/make_venv $(PYTHON) $(VENV) dev

$(OLDEST)/installed: setup.cfg pyproject.toml tests/oldest.txt scripts/make_venv
	scripts/make_venv $(PYTHON) $(OLDEST) test --constraint tests/oldest.txt

$(INTEGRATIONS)/installed: setup.cfg pyproject.toml tests/integrations/requirements.txt scripts/make_venv
	scripts/make_venv $(PYTHON) $(INTEGRATIONS) test --requirement tests/integrations/requirements.txt

$(OLDER_SCRAPY)/installed: setup.cfg pyproject.toml tests/integrations/older_scrapy/requirements.txt scripts/make_venv
	scripts/make_venv $(PYTHON) $(OLDER_SCRAPY) test --requirement tests/integrations/older_scrapy/requirements.txt
