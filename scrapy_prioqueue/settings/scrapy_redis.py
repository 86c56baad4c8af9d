"""The settings of scrapy-redis and their meaning here. One is read only if our corresponding setting is not set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from scrapy.settings import BaseSettings

from scrapy_prioqueue.errors import SettingError
from scrapy_prioqueue.settings.readers import (
    HIDDEN,
    MOST_SEEDS_AT_ONCE,
    class_path,
    count,
    flag,
    idle_time,
    mapping,
    redis_url,
    text,
)

_QUEUES = re.compile(r"scrapy_redis\.queue\.(\w+)")
_ORDERS = {
    "FifoQueue": "fifo",
    "SpiderQueue": "fifo",
    "LifoQueue": "lifo",
    "SpiderStack": "lifo",
    "PriorityQueue": None,
    "SpiderPriorityQueue": None,
}
"""Order of each of scrapy-redis's queue classes; that of `PriorityQueue` is by priority, and among equals by chance."""

_FILTER = "scrapy_redis.dupefilter.RFPDupeFilter"

_HOST = re.compile(r"[\w.:-]+")
_PARTS = {"REDIS_URL": "url", "REDIS_HOST": "host", "REDIS_PORT": "port", "REDIS_DB": "db"}
_IN_URL = frozenset({"url", "host", "port", "db", "ssl", "unix_socket_path"})
_OPTIONS = re.compile(
    r"username|password|client_name|max_connections|health_check_interval|ssl_\w+"
    r"|socket_(timeout|connect_timeout|keepalive|keepalive_options)"
)
"""Those of `REDIS_PARAMS` that a worker's own connections have, too."""

_HAS_NO_MEANING = frozenset({"encoding", "encoding_errors", "decode_responses", "retry_on_timeout"})
"""Also of `REDIS_PARAMS`: those that change nothing a user would notice."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """Values of our settings, taken from a project's settings of scrapy-redis.

    Args:
        values: by the name of our setting, read and checked.
        sources: by the name of our setting, the settings that its value comes from.
        warnings: one for each setting that has no effect.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, Sequence[str]]
    warnings: Sequence[str]

    def source_of(self, name: str) -> str:
        """Return the name of the setting that our setting's value comes from."""
        return self.sources.get(name, [name])[0]


def adopted(settings: BaseSettings) -> Adopted:
    """Read the settings of scrapy-redis for those of ours that are not set.

    Raises:
        SettingError: a value can't be used; the error names the setting of scrapy-redis.
    """
    values: dict[str, Any] = {}
    sources: dict[str, list[str]] = {}
    for name, theirs in SCRAPY_REDIS_SETTINGS.items():
        ours, found = theirs.ours, settings.get(name)
        if theirs.read is not None and found is not None and not is_set(settings, ours) and ours not in values:
            value = theirs.read(settings, name, found)
            if value is not None:
                values[ours], sources[ours] = value, [name]
    warnings = [*_without_meaning(settings)]
    if not is_set(settings, "PRIOQUEUE_REDIS_URL"):
        server = server_of(settings)
        warnings += server.warnings
        if server.url is not None:
            values["PRIOQUEUE_REDIS_URL"] = server.url
        if server.options:
            own = mapping("PRIOQUEUE_REDIS_OPTIONS", settings.get("PRIOQUEUE_REDIS_OPTIONS") or {})
            values["PRIOQUEUE_REDIS_OPTIONS"] = {**server.options, **own}
        sources["PRIOQUEUE_REDIS_URL"] = [name for name in (*_PARTS, "REDIS_PARAMS") if settings.get(name)]
    return Adopted(values, {ours: names for ours, names in sources.items() if names}, warnings)


def is_set(settings: BaseSettings, name: str) -> bool:
    """Return whether a setting has a value."""
    return settings.get(name) not in (None, "")


def is_scrapy_rediss_filter(value: Any) -> bool:
    """Return whether `DUPEFILTER_CLASS` is scrapy-redis's filter, which shares fingerprints as ours does."""
    return class_path(value) == _FILTER


def derives_from_filter(kind: type) -> bool:
    """Return whether a class is derived from scrapy-redis's filter, which need not be installed."""
    return _FILTER in map(class_path, kind.__mro__)


def idle_time_of(spider: object) -> float | None:
    """Return how many seconds a spider of scrapy-redis waits for start URLs; None for any other spider.

    It keeps itself open. The crawl must stay open, too, or the requests that it then makes would come too late.
    """
    if "scrapy_redis.spiders.RedisMixin" not in map(class_path, type(spider).__mro__):
        return None
    return float(getattr(spider, "max_idle_time", None) or "inf")


def keys_of_crawl(settings: BaseSettings, spider: str) -> tuple[str, str]:
    """Return the keys in which scrapy-redis stores a spider's requests and its fingerprints."""
    defaults = {"SCHEDULER_QUEUE_KEY": "%(spider)s:requests", "SCHEDULER_DUPEFILTER_KEY": "%(spider)s:dupefilter"}
    keys = (str(settings.get(name) or default) for name, default in defaults.items())
    queue, seen = (key.replace("%(spider)s", spider).replace("%%", "%") for key in keys)
    return queue, seen


def may_have_crawled(settings: BaseSettings) -> bool:
    """Return whether the project's settings are those of scrapy-redis, with which it may have stored a crawl."""
    is_filtered = is_scrapy_rediss_filter(settings.get("DUPEFILTER_CLASS"))
    return is_filtered or any(is_set(settings, name) for name in SCRAPY_REDIS_SETTINGS)


# Settings of the server


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """The server that scrapy-redis would use.

    Args:
        url: None if no setting names one.
        options: further arguments of the client.
        warnings: about arguments that have no effect.
    """

    url: str | None
    options: Mapping[str, Any]
    warnings: Sequence[str]


def server_of(settings: BaseSettings) -> ServerSetting:
    """Return the server that the settings of scrapy-redis name, by its rules.

    `REDIS_URL` and the like override `REDIS_PARAMS`, and the parts of a URL override everything else.

    Raises:
        SettingError: a value can't be used.
    """
    found = dict(mapping("REDIS_PARAMS", settings.get("REDIS_PARAMS") or {}))
    found.update({part: settings[name] for name, part in _PARTS.items() if settings.get(name)})
    options = {name: value for name, value in found.items() if _OPTIONS.fullmatch(name)}
    unknown = sorted(set(found) - set(options) - _IN_URL - _HAS_NO_MEANING)
    warnings = [
        f"REDIS_PARAMS[{name!r}] has no effect: set it in PRIOQUEUE_REDIS_OPTIONS if asyncio clients have it"
        for name in unknown
    ]
    if "url" in found:
        url = redis_url("REDIS_URL", found["url"])
        options.update({part: value for part, value in _checked(found).items() if part in ("port", "db")})
        return ServerSetting(
            url, {name: value for name, value in options.items() if name not in _given_in(url)}, warnings
        )
    return ServerSetting(_made_of(_checked(found)), options, warnings)


def _checked(found: Mapping[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = {"ssl": flag("REDIS_PARAMS['ssl']", found.get("ssl", False))}
    if "host" in found:
        host = found["host"]
        if not isinstance(host, str) or not _HOST.fullmatch(host):
            why = "must be the name or address of a host; a URL goes into REDIS_URL"
            raise SettingError("REDIS_HOST", HIDDEN, why)
        parts["host"] = host
    if "port" in found:
        parts["port"] = count("REDIS_PORT", found["port"], limit=65535)
    if "db" in found:
        parts["db"] = count("REDIS_DB", found["db"], least=0)
    if "unix_socket_path" in found:
        parts["path"] = text("REDIS_PARAMS['unix_socket_path']", found["unix_socket_path"])
    return parts


def _made_of(parts: Mapping[str, Any]) -> str | None:
    if "path" in parts:
        return f"unix://{quote(parts['path'])}?db={parts.get('db', 0)}"
    if not {"host", "port", "db"} & parts.keys():
        return None
    host = parts.get("host", "127.0.0.1")
    host = f"[{host}]" if ":" in host else host
    return f"{'rediss' if parts['ssl'] else 'redis'}://{host}:{parts.get('port', 6379)}/{parts.get('db', 0)}"


def _given_in(url: str) -> set[str]:
    parts = urlsplit(url)
    given = {
        "username": parts.username,
        "password": parts.password,
        "port": parts.port or parts.scheme == "unix",
        "db": parts.scheme != "unix" and parts.path.strip("/"),
    }
    return {name for name, value in given.items() if value} | set(parse_qs(parts.query))


# Other settings


def _on_finish(settings: BaseSettings, name: str, value: Any) -> str:
    return "keep" if flag(name, value) else "restart"


def _flush(settings: BaseSettings, name: str, value: Any) -> bool:
    return flag(name, value)


def _idle_before_close(settings: BaseSettings, name: str, value: Any) -> float:
    return idle_time(name, value)


def _idle_of_seeded(settings: BaseSettings, name: str, value: Any) -> float | None:
    if settings.get("PRIOQUEUE_SEEDS_KEY") is None:
        return None
    return idle_time(name, value) or float("inf")


def _order(settings: BaseSettings, name: str, value: Any) -> str | None:
    found = _QUEUES.fullmatch(class_path(value))
    return _ORDERS.get(found[1]) if found else None


def order_of_list(settings: BaseSettings) -> str | None:
    """Return the order in which the project's class of queues serves a list, None if that isn't known."""
    name = "SCHEDULER_QUEUE_CLASS"
    return _order(settings, name, settings.get(name))


def _seen_name(settings: BaseSettings, name: str, value: Any) -> str | None:
    key = text(name, value)
    # A key per spider needs no name, and fingerprints under their own name would survive the end of a crawl.
    return re.sub(r"[{}]", "", key) if _is_shared(key) and _persists(settings) else None


def _is_shared(key: str) -> bool:
    return "%(spider)s" not in key


def _persists(settings: BaseSettings) -> bool:
    return flag("SCHEDULER_PERSIST", settings.get("SCHEDULER_PERSIST") or False)


def _batch_size(settings: BaseSettings, name: str, value: Any) -> int:
    return min(count(name, value), MOST_SEEDS_AT_ONCE)


@dataclass(frozen=True, slots=True)
class Theirs:
    """One setting of scrapy-redis.

    Args:
        ours: our setting that it provides a value for; empty if there is none.
        doc: its meaning here.
        read: returns the value of our setting, None for its default; gets the settings, the name and the value of this
            one. None if it is read elsewhere, or not at all.
        has_meaning: whether anything here reads it; if not, a worker warns at start.
    """

    ours: str
    doc: str
    read: Callable[[BaseSettings, str, Any], Any] | None = None
    has_meaning: bool = True


SCRAPY_REDIS_SETTINGS: Mapping[str, Theirs] = {
    "REDIS_URL": Theirs("PRIOQUEUE_REDIS_URL", "The same."),
    "REDIS_HOST": Theirs("PRIOQUEUE_REDIS_URL", "Host of the server; `REDIS_URL` comes first."),
    "REDIS_PORT": Theirs("PRIOQUEUE_REDIS_URL", "Port of the server, 6379 by default."),
    "REDIS_DB": Theirs("PRIOQUEUE_REDIS_URL", "Number of the database, 0 by default."),
    "REDIS_PARAMS": Theirs(
        "PRIOQUEUE_REDIS_OPTIONS",
        "Address, user and password, timeouts and TLS options. Others, such as `redis_cls`, are not used, and named at"
        " start.",
    ),
    "REDIS_ENCODING": Theirs(
        "", "Encoding of seeds and items, for the spiders and pipelines of `scrapy_prioqueue.compat`."
    ),
    "REDIS_DECODE_RESPONSES": Theirs("", "Not used: `make_request_from_data()` gets bytes.", has_meaning=False),
    "SCHEDULER_PERSIST": Theirs(
        "PRIOQUEUE_ON_FINISH",
        'True is "keep", False is "restart"; an interrupted crawl is resumed in both cases.',
        _on_finish,
    ),
    "SCHEDULER_FLUSH_ON_START": Theirs(
        "PRIOQUEUE_FLUSH_ON_START",
        "Deletes everything at start. If other workers are alive, the worker joins them and deletes nothing; with"
        " `PRIOQUEUE_FLUSH_ON_START` it is rejected.",
        _flush,
    ),
    "MAX_IDLE_TIME_BEFORE_CLOSE": Theirs(
        "PRIOQUEUE_MAX_IDLE",
        "The same number of seconds, for spiders that read seeds; but 0 means for ever, like -1 here.",
        _idle_of_seeded,
    ),
    "SCHEDULER_IDLE_BEFORE_CLOSE": Theirs(
        "PRIOQUEUE_MAX_IDLE", "The same, without blocking the worker.", _idle_before_close
    ),
    "SCHEDULER_QUEUE_CLASS": Theirs(
        "PRIOQUEUE_ORDER",
        'Order of requests of equal priority: `FifoQueue` is "fifo", `LifoQueue` is "lifo"; priorities count in all'
        " cases.",
        _order,
    ),
    "SCHEDULER_QUEUE_KEY": Theirs(
        "",
        "Not used: `PRIOQUEUE_NAME` names the frontier. This key only finds an old crawl of scrapy-redis.",
        has_meaning=False,
    ),
    "SCHEDULER_SERIALIZER": Theirs(
        "", "Not used: requests are stored as MessagePack and nothing is pickled.", has_meaning=False
    ),
    "SCHEDULER_DUPEFILTER_KEY": Theirs(
        "PRIOQUEUE_SEEN_NAME",
        "Spiders with the same key share the fingerprints seen; only with `SCHEDULER_PERSIST`.",
        _seen_name,
    ),
    "REDIS_START_URLS_KEY": Theirs("PRIOQUEUE_SEEDS_KEY", "The same, for spiders that read seeds."),
    "REDIS_START_URLS_AS_SET": Theirs("", "Not needed: the type of the key is read."),
    "REDIS_START_URLS_AS_ZSET": Theirs("", "Not needed: the type of the key is read; the highest score comes first."),
    "REDIS_START_URLS_BATCH_SIZE": Theirs(
        "PRIOQUEUE_SEEDS_BATCH_SIZE", f"The same, at most {MOST_SEEDS_AT_ONCE:,}.", _batch_size
    ),
    "REDIS_KEY_CHECK_INTERVAL": Theirs(
        "", "Not used: each batch comes from the first key that has seeds.", has_meaning=False
    ),
    "REDIS_ITEMS_KEY": Theirs("", "The same, for the pipelines of `scrapy_prioqueue.compat`."),
    "REDIS_ITEMS_SERIALIZER": Theirs("", "The same, for the pipelines of `scrapy_prioqueue.compat`."),
}
"""Compared with the table in docs/migrating.md. Of several for one of ours, the first that is set counts."""


def _without_meaning(settings: BaseSettings) -> Iterator[str]:
    for name, theirs in SCRAPY_REDIS_SETTINGS.items():
        if not theirs.has_meaning and is_set(settings, name):
            yield f"{name} has no effect: {theirs.doc.removeprefix('Not used: ').replace('`', '')}"
    key = settings.get("SCHEDULER_DUPEFILTER_KEY")
    if key and _is_shared(key) and not _persists(settings) and not is_set(settings, "PRIOQUEUE_SEEN_NAME"):
        yield (
            f"SCHEDULER_DUPEFILTER_KEY = {key!r} has no effect without SCHEDULER_PERSIST = True: each spider has"
            " fingerprints of its own. Set PRIOQUEUE_SEEN_NAME to share and keep them"
        )
    queue = settings.get("SCHEDULER_QUEUE_CLASS")
    found = _QUEUES.fullmatch(class_path(queue)) if queue else None
    if queue and (found is None or found[1] not in _ORDERS):
        yield (
            f"SCHEDULER_QUEUE_CLASS = {class_path(queue)!r} has no effect: the order is that of tier and priority."
            " Set PRIOQUEUE_ORDER or PRIOQUEUE_TIER_RULES"
        )
