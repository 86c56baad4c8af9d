"""Class and arguments of a spider, as workers compare them and as placeholders in names of keys use them."""

from __future__ import annotations

import dis
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import chain
from types import CodeType
from typing import Any

from scrapy import Spider

from scrapy_prioqueue.invocation import running_command

SHOWN_LENGTH = 100
"""Values with longer texts are stored as digests."""

_MAY_DIFFER = frozenset(
    {"job", "jobid", "job_id", "worker", "worker_id", "hostname", "pid", "log_file"}
    # Of scrapy-redis's spiders; `redis_key` isn't one, since it changes what is crawled.
    | {"redis_batch_size", "redis_encoding", "max_idle_time"}
)
"""Arguments that workers of one crawl may differ in, besides those with a leading underscore (scrapyd's `_job`)."""

_SECRET = re.compile(
    r"pass(word|wd|phrase)|(^|_)pass(_|$)|pwd|token|secret|keys?(_|$)|(^|_)auth(_|$)|credential|cookie|(^|_)session",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"://[^/]*@")
_DIGEST = "digest "


def arguments_of(spider: Spider) -> dict[str, Any]:
    """Return the arguments of a spider.

    Those of the command line are known. For a program that calls `CrawlerProcess.crawl()` they are the attributes of
    the spider that its class doesn't assign itself.
    """
    invocation = running_command()
    if invocation is not None and invocation.arguments is not None:
        return dict(invocation.arguments)
    parameters, own = set(_parameters(type(spider))), set(_assigned(type(spider)))
    return {name: value for name, value in vars(spider).items() if name in parameters or name not in own}


def _parameters(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            yield from inspect.signature(vars(base)["__init__"]).parameters


def _assigned(cls: type) -> Iterator[str]:
    """Return the names of all attributes that code of the class assigns to."""
    for attribute in chain.from_iterable(vars(base).values() for base in cls.__mro__):
        code = getattr(getattr(attribute, "__func__", attribute), "__code__", None)
        if code is not None:
            yield from _stored_attributes(code)


@cache
def _stored_attributes(code: CodeType) -> frozenset[str]:
    return frozenset(step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")


def argument(spider: Spider, name: str) -> Any:
    """Return an argument, or the attribute of that name, None if there is neither."""
    found = getattr(spider, name, None)
    return arguments_of(spider).get(name) if found is None else found


def description_of(spider: Spider) -> str:
    """Return class and arguments of a spider as JSON; secrets and long values appear only as digests."""
    cls = type(spider)
    values = {name: _shown(name, value) for name, value in arguments_of(spider).items() if _is_compared(name)}
    arguments = {name: text for name, text in sorted(values.items()) if text is not None}
    return json.dumps({"class": f"{cls.__module__}:{cls.__qualname__}", "arguments": arguments})


def _is_compared(name: str) -> bool:
    return not name.startswith("_") and name not in _MAY_DIFFER and name not in vars(Spider) and name != "name"


def _shown(name: str, value: Any) -> str | None:
    """Return a value as text, or as a digest if it is secret or long; None if it has no exact text."""
    if value is None or not _is_plain(value):
        return None
    text = repr(value)
    if len(text) <= SHOWN_LENGTH and not _SECRET.search(name) and not _SECRET_VALUE.search(text):
        return text
    return _DIGEST + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, chain(value, value.values())))
    return value is None or isinstance(value, (str, bytes, int, float))


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences of two descriptions.

    Args:
        texts: one sentence for each difference.
        arguments: names of the arguments that differ and are not secret.
    """

    texts: Sequence[str] = ()
    arguments: Sequence[str] = ()


def difference(here: str, there: str) -> Difference:
    """Compare the descriptions of two spiders; an empty or unreadable one counts as equal to any."""
    if here == there or not here or not there:
        return Difference()
    try:
        own, other = json.loads(here), json.loads(there)
        own_class, other_class = own["class"], other["class"]
        arguments, others = dict(own["arguments"]), dict(other["arguments"])
    except (ValueError, KeyError, TypeError):
        # It was written by another release.
        return Difference()
    names = [name for name in sorted({*arguments, *others}) if arguments.get(name) != others.get(name)]
    texts = [_compared(name, arguments.get(name), others.get(name)) for name in names]
    if own_class != other_class:
        texts.insert(0, f"its class is {own_class} here and {other_class} there")
    open_names = [name for name in names if not (_is_hidden(arguments.get(name)) or _is_hidden(others.get(name)))]
    return Difference(texts, open_names)


def _compared(name: str, here: str | None, there: str | None) -> str:
    if here is not None and there is not None and (_is_hidden(here) or _is_hidden(there)):
        return f"{name} has one value here and another there"
    return f"{name} is {_worded(here)} here and {_worded(there)} there"


def _worded(shown: str | None) -> str:
    if shown is None:
        return "not given"
    return "given" if _is_hidden(shown) else shown


def _is_hidden(shown: str | None) -> bool:
    return shown is not None and shown.startswith(_DIGEST)
