"""What the spider finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """A product of the shop.

    Args:
        url: address of its page.
        name: as the shop calls it.
        price: digits as the shop prints them, no currency.
        tier: tier in which its page was asked for.
        worker: id of the worker that fetched it.
    """

    url: str
    name: str
    price: str
    tier: str
    worker: str
