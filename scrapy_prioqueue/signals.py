"""Signals of this package, sent through `crawler.signals`; docs/reference/signals.md describes their arguments."""

frontier_degraded = object()
frontier_recovered = object()
request_dead_lettered = object()
lease_lost = object()
request_not_stored = object()
