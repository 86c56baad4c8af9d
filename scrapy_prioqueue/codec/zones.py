"""Time zones as plain data: keys of the time zone database and offsets."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from scrapy_prioqueue.codec.reasons import Unstorable, brief, name_of_type

Zone = str | timedelta | list[Any] | None
"""A key such as ``Europe/Paris``, an offset from UTC, or a list of an offset and its name; None without a zone."""

Moment = datetime | time


def zone_of(moment: Moment) -> tuple[Zone, int]:
    """Return a moment's zone and its `fold`.

    A zone of pytz is stored by its key, as `zoneinfo` knows it, if that has the same offset at this moment.
    Any other zone is stored as the offset that it has at this moment.

    Raises:
        Unstorable: it has none.
    """
    zone = moment.tzinfo
    if zone is None:
        return None, moment.fold
    if type(zone) is ZoneInfo and zone.key:
        return zone.key, moment.fold
    if type(zone) is timezone:
        return _offset(zone.utcoffset(None), zone.tzname(None)), moment.fold
    try:
        offset, name = moment.utcoffset(), moment.tzname()
        if offset is not None:
            return _as_in_database(zone, moment, offset) or (_offset(offset, name), 0)
    except Exception:  # a zone is anybody's code
        pass
    raise Unstorable(f"the time zone {brief(zone)} can't be stored, since it has no offset here", name_of_type(zone))


def in_zone(moment: Moment, zone: Zone, fold: int) -> Any:
    """Return a moment that has no zone yet in that zone.

    Raises:
        Exception: of some kind, if it is none.
    """
    return moment.replace(tzinfo=zone_at(zone), fold=fold)


def zone_at(zone: Zone) -> tzinfo | None:
    """Return the zone that this stands for.

    Raises:
        Exception: of some kind, if it is none.
    """
    if zone is None:
        return None
    if isinstance(zone, list):
        return timezone(*zone)
    # Any text is safe: ZoneInfo looks in its own directories only and refuses a key that leads out of them.
    return timezone(zone) if isinstance(zone, timedelta) else ZoneInfo(zone)


def _as_in_database(zone: tzinfo, moment: Moment, offset: timedelta) -> tuple[Zone, int] | None:
    key = getattr(zone, "zone", None)
    if type(key) is not str or key == "UTC":
        return None
    try:
        known = ZoneInfo(key)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None
    for fold in (0, 1):
        if moment.replace(tzinfo=known, fold=fold).utcoffset() == offset:
            return key, fold
    return None


def _offset(offset: timedelta, name: str | None) -> Zone:
    return offset if name is None or name == timezone(offset).tzname(None) else [offset, name]
