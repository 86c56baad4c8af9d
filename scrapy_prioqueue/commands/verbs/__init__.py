"""The verbs of `scrapy frontier`, one small module each; this module only lists them, in the order of the help."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from scrapy_prioqueue.commands.verb import Verb

_MODULES = (
    *("list", "status", "top", "dashboard", "slots", "peek", "show", "find", "explain", "workers"),
    *("runs", "report", "scale", "exporter", "doctor", "check", "limit", "budget", "push"),
    *("dead", "forget", "pending", "release", "orders", "transfer", "migrate", "reset"),
)


def _verbs_of(name: str) -> Sequence[type[Verb]]:
    module = import_module(f"{__name__}.{name}")
    classes = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    return [each for each in classes if issubclass(each, Verb) and "name" in vars(each)]


VERBS: Sequence[type[Verb]] = [verb for name in _MODULES for verb in _verbs_of(name)]
