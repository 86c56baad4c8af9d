# What developers and CI run; `make help` lists it. Everything is installed into .venv and .venv-oldest.

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest

# The tests that touch Scrapy, run a second time with the lowest versions that setup.cfg allows,
# and those that touch Redis, run with every other server of this machine: the first run has used one.
# Tests marked `server_faults` take long, and differ by the server rather than by Scrapy.
OLDEST_TESTS := tests/unit tests/crawl
REDIS_TESTS := tests/contract tests/lua

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Processes that run tests side by side.
JOBS := 2

# Schedules of the simulation that `make soak` runs, beyond those of the tests.
SEEDS := 1000000

.PHONY: help test test-newest test-oldest test-redis soak lint luacheck format demo bench bench-quick bench-write chaos clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

test: lint test-newest test-oldest test-redis ## everything: lint, all tests, lowest versions, every Redis and Valkey

test-newest: $(VENV)/installed ## all tests on the newest Scrapy
	$(VENV)/bin/python -m pytest --numprocesses $(JOBS)

test-oldest: $(OLDEST)/installed ## the tests that touch Scrapy, on the lowest versions
	$(OLDEST)/bin/python -m pytest --numprocesses $(JOBS) $(OLDEST_TESTS) -m 'not server_faults'

test-redis: $(VENV)/installed ## the tests that touch Redis, on the other servers of this machine
	@set -e; servers=$$(PYTHONPATH=example_project $(VENV)/bin/python scripts/list_redis_servers.py); \
	for server in $$servers; do \
	    PRIOQUEUE_TEST_REDIS=$$server $(VENV)/bin/python -m pytest --numprocesses $(JOBS) $(REDIS_TESTS) -m 'not in_process'; \
	done

soak: $(VENV)/installed ## simulate SEEDS schedules, a million if not told otherwise; takes a day
	PYTHONPATH=example_project $(VENV)/bin/python -m tests.simulation --seeds $(SEEDS) --first 150

lint: $(VENV)/installed luacheck ## style, types, imports, Lua
	$(VENV)/bin/ruff check --output-format concise .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/python scripts/lint_lua.py

format: $(VENV)/installed ## mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

demo: $(VENV)/installed ## crawl a shop with two workers, one of which is killed
	$(VENV)/bin/python example_project/demo.py

bench: $(VENV)/installed ## run the benchmarks and write docs/performance.md; ONLY="crawl fleet" some, QUICK=1 a short form
	$(VENV)/bin/python -m pip install -qq -e '.[bench]'
	PYTHONPATH=example_project $(VENV)/bin/python benchmarks/suite.py $(ONLY) $(if $(QUICK),--quick)

bench-quick: ## the benchmarks' short form, under three minutes; its page is in build/benchmarks
	$(MAKE) bench QUICK=1

bench-write: $(VENV)/installed ## write docs/performance.md and docs/sizing.md again from the results there are
	PYTHONPATH=example_project $(VENV)/bin/python benchmarks/suite.py --write

chaos: $(VENV)/installed ## crawl a shop while everything goes wrong; takes minutes
	PYTHONPATH=example_project $(VENV)/bin/python benchmarks/chaos.py

clean: ## remove what the other targets have made
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info .hypothesis .*_cache

luacheck:
	@command -v luacheck >/dev/null || scripts/install_debian_package lua-check

$(VENV)/installed: setup.cfg pyproject.toml scripts/make_venv
	scripts/make_venv $(PYTHON) $(VENV)

$(OLDEST)/installed: setup.cfg pyproject.toml tests/oldest.txt scripts/make_venv
	scripts/make_venv $(PYTHON) $(OLDEST) --constraint tests/oldest.txt
