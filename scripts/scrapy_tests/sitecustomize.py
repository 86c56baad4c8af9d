"""Make our scheduler and filter Scrapy's defaults, in each process that has this folder in `PYTHONPATH`.

Python imports this module when it starts, so that processes started by tests are included.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from types import ModuleType
from typing import Any

PATCHED = "scrapy.settings.default_settings"
URL_VARIABLE = "PRIOQUEUE_SCRAPY_TESTS_URL"
"""Address of the server; if it isn't set, crawls run in process."""

NO_SERVER = "redis://127.0.0.1:1/0"

_crawls = count(1)


class _NameOfEachCrawl(str):
    """A frontier name that differs for each crawl: tests reuse a spider's name and expect unrelated crawls."""

    def __mod__(self, values: Any) -> str:
        return f"{values['spider']}-{os.getpid()}-{next(_crawls)}"


class _DefaultsLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__dict__.update(
            SCHEDULER="scrapy_prioqueue.Scheduler",
            DUPEFILTER_CLASS="scrapy_prioqueue.DupeFilter",
            PRIOQUEUE_NAME=_NameOfEachCrawl("%(spider)s"),
            PRIOQUEUE_REDIS_URL=os.environ.get(URL_VARIABLE, NO_SERVER),
            PRIOQUEUE_FALLBACK="error" if URL_VARIABLE in os.environ else "memory",
        )


class _DefaultsFinder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != PATCHED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DefaultsLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _DefaultsFinder())
