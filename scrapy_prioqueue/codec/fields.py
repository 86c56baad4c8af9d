"""The stored fields of a request and the numbers of common headers; both are part of the format."""

from __future__ import annotations

from typing import Any, NamedTuple


class Field(NamedTuple):
    """An attribute of a request, stored under a number unless it has its default value.

    Args:
        kinds: types of the stored value.
    """

    number: int
    name: str
    kinds: type | tuple[type, ...]
    default: Any


URL = Field(0, "url", str, None)
CALLBACK = Field(1, "callback", (str, bool), None)
META = Field(2, "meta", dict, {})
HEADERS = Field(3, "headers", dict, {})
PRIORITY = Field(4, "priority", int, 0)
CB_KWARGS = Field(5, "cb_kwargs", dict, {})
DONT_FILTER = Field(6, "dont_filter", object, False)
METHOD = Field(7, "method", str, "GET")
BODY = Field(8, "body", bytes, b"")
ERRBACK = Field(9, "errback", (str, bool), None)
COOKIES = Field(10, "cookies", (dict, list, tuple), {})
FLAGS = Field(11, "flags", list, [])
ENCODING = Field(12, "encoding", str, "utf-8")
CLASS = Field(13, "class", str, None)
EXTRAS = Field(14, "attributes", dict, None)
SOURCE = Field(15, "source", (str, bool), None)
FOUND = Field(16, "found", int, None)
SHORT_META = Field(17, "short meta", dict, None)
OTHERS = Field(18, "others", dict, None)
LEFT_OUT = Field(19, "left out", list, None)
RULE_DIGEST = Field(20, "rule", int, None)

ATTRIBUTES = (
    *(URL, CALLBACK, META, HEADERS, PRIORITY, CB_KWARGS, DONT_FILTER),
    *(METHOD, BODY, ERRBACK, COOKIES, FLAGS, ENCODING),
)
PLAIN = (CB_KWARGS, DONT_FILTER, METHOD, BODY, COOKIES, FLAGS, ENCODING)
_MORE = (CLASS, EXTRAS, SOURCE, FOUND, SHORT_META, OTHERS, LEFT_OUT, RULE_DIGEST)
STORED = {field.number: field for field in (*ATTRIBUTES, *_MORE)}
NAMES = {number: field.name for number, field in STORED.items()}

REFERER = b"Referer"
REFERER_NUMBER = 0
HEADER_NAMES = {
    REFERER_NUMBER: REFERER,
    1: b"User-Agent",
    2: b"Accept",
    3: b"Accept-Language",
    4: b"Accept-Encoding",
    5: b"Content-Type",
    6: b"Cookie",
    7: b"Authorization",
    8: b"Origin",
    9: b"X-Requested-With",
}
HEADER_NUMBERS = {name: number for number, name in HEADER_NAMES.items()}
