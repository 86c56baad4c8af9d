"""The meaning of Scrapy's queue settings for this scheduler, and warnings for those without effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from scrapy.settings import BaseSettings
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue
from scrapy.utils.misc import load_object

from scrapy_prioqueue.settings.readers import class_path

Order = Literal["lifo", "fifo"]

_START_QUEUE = "SCHEDULER_START_MEMORY_QUEUE"


def queue_order(settings: BaseSettings) -> Order:
    """Return the order that `SCHEDULER_MEMORY_QUEUE` asks for, LIFO for a class of the project's own."""
    return _order_by(settings, "SCHEDULER_MEMORY_QUEUE") or "lifo"


def start_order(settings: BaseSettings) -> Order | None:
    """Return the order of start requests, which come after others of equal rank; None to treat them as all others."""
    return (_order_by(settings, _START_QUEUE) or "fifo") if settings.get(_START_QUEUE) else None


def without_effect(settings: BaseSettings, order: Order) -> Sequence[str]:
    """Return a warning for each setting without effect."""
    found = []
    priority_queue = settings.get("SCHEDULER_PRIORITY_QUEUE")
    if priority_queue and not class_path(priority_queue).startswith("scrapy."):
        found.append(
            f"SCHEDULER_PRIORITY_QUEUE = {class_path(priority_queue)!r} has no effect: the order is that of tier and"
            " priority, and hosts take turns. Use PRIOQUEUE_TIER_RULES, or unset it"
        )
    if _order_by(settings, "SCHEDULER_MEMORY_QUEUE") is None:
        name = class_path(settings["SCHEDULER_MEMORY_QUEUE"])
        found.append(
            f"SCHEDULER_MEMORY_QUEUE = {name!r} has no effect, since it is neither LIFO nor FIFO: requests of equal"
            f" tier and priority are served in {order.upper()} order. Set PRIOQUEUE_ORDER"
        )
    start_queue = settings.get(_START_QUEUE)
    if start_queue and _order_by(settings, _START_QUEUE) is None:
        found.append(
            f"{_START_QUEUE} = {class_path(start_queue)!r} has no effect, since it is neither LIFO nor FIFO: start"
            " requests come after others of equal tier and priority, in the order yielded. Set it to one of"
            " Scrapy's, or to None to order them as all others"
        )
    return found


def _order_by(settings: BaseSettings, name: str) -> Order | None:
    found = settings.get(name)
    queue = load_object(found) if found else None
    if isinstance(queue, type) and issubclass(queue, FifoMemoryQueue):
        return "fifo"
    return "lifo" if isinstance(queue, type) and issubclass(queue, LifoMemoryQueue) else None
