"""Time zones as plain data: keys of the time zone database and offsets."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from scrapy_prioqueue.codec.reasons import Unstorable, brief, name_of_type

Zone = str | timedelta | list[Any] | None
"""Key such as ``Europe/Paris``, offset from UTC, or list of an offset and its name; None if there is no zone."""

Moment = datetime | time


def zone_of(moment: Moment) -> tuple[Zone, int]:
    """Return a moment's zone and its `fold`.

    A pytz zone is stored by its key if `zoneinfo` has the same offset for that key at this moment.
    Any other zone is stored as its offset at this moment.

    Raises:
        Unstorable: the zone has no offset at this moment.
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
    except Exception:  # zones may be code of any package
        pass
    raise Unstorable(f"the time zone {brief(zone)} can't be stored, since it has no offset here", name_of_type(zone))


def in_zone(moment: Moment, zone: Zone, fold: int) -> Any:
    """Return a moment without a zone in that zone.

    Raises:
        Exception: any, if the zone is invalid.
    """
    return moment.replace(tzinfo=zone_at(zone), fold=fold)


def zone_at(zone: Zone) -> tzinfo | None:
    """Return the zone of its stored form.

    Raises:
        Exception: any, if the zone is invalid.
    """
    if zone is None:
        return None
    if isinstance(zone, list):
        return timezone(*zone)
    # Any text is safe: ZoneInfo searches only its own directories and refuses a key that leads out of them.
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
