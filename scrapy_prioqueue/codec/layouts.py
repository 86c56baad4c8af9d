"""Payload layouts: how the stored fields of a request become bytes. One layout is written, an older one is also read.

A payload of layout 3 leaves out the slot, which its reader knows, and encodes common values in a few bits.
It has two bytes of flags, small numbers of fixed size, a map of all values without a short form, and texts in six bits
a letter. docs/reference/payload.md describes it in full.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any
from urllib.parse import urlsplit

from scrapy_prioqueue.codec.fields import (
    CALLBACK,
    DONT_FILTER,
    ERRBACK,
    FOUND,
    HEADERS,
    META,
    PRIORITY,
    REFERER_NUMBER,
    SHORT_META,
    SOURCE,
    URL,
)
from scrapy_prioqueue.errors import DecodeError
from scrapy_prioqueue.frontier.labels import unlabelled

MAP_LAYOUT = 1
"""The oldest layout: a MessagePack map of the fields."""

SHORT_LAYOUT = 3
"""The current layout, with texts in six bits a letter."""

LONG_LAYOUT = 4
"""The current layout, with texts in UTF-8."""

_SHORT_LAYOUTS = (SHORT_LAYOUT, LONG_LAYOUT)

# Flags of the first byte, above the number of the layout ...
_HAS_MAP, _HAS_DEPTH, _HAS_FOUND, _HAS_CALLBACK = 0x10, 0x20, 0x40, 0x80
# ... and those of the second.
URL_FORM = 0x03
_URL_WHOLE, _URL_HTTPS, _URL_HTTP, _URL_IN_MAP = range(4)
_HAS_REFERER, _SOURCE_IS_REFERER, _HAS_SOURCE, _HAS_ERRBACK, _NOT_FILTERED = 0x04, 0x08, 0x10, 0x20, 0x40
_HAS_PRIORITY = 0x80
_RARER = _HAS_REFERER | _SOURCE_IS_REFERER | _HAS_SOURCE | _HAS_ERRBACK | _NOT_FILTERED

EPOCH_S = 1_700_000_000
"""Found times are stored as seconds since this Unix time, in four bytes."""

META_KEYS = {
    **{0: "download_slot", 1: "link_text", 2: "rule", 3: "is_start_request", 4: "retry_times", 5: "depth"},
    **{6: "redirect_times", 7: "redirect_ttl", 8: "redirect_urls", 9: "redirect_reasons", 10: "proxy"},
    **{11: "cookiejar", 12: "dont_merge_cookies", 13: "dont_redirect", 14: "dont_retry", 15: "max_retry_times"},
    **{16: "handle_httpstatus_list", 17: "handle_httpstatus_all", 18: "download_timeout", 19: "download_latency"},
    **{20: "download_maxsize", 21: "dont_cache", 22: "dont_obey_robotstxt", 23: "verbatim_url", 24: "bindaddress"},
    **{25: "referrer_policy", 26: "prioqueue_tier", 27: "prioqueue_requeue_times", 28: "prioqueue_budget"},
    **{29: "prioqueue_dont_record", 30: "playwright", 31: "splash", 32: "zyte_api", 33: "zyte_api_automap"},
    **{34: "prioqueue_render", 35: "prioqueue_layer", 36: "item", 37: "page", 38: "category"},
}
META_IS_SLOT = 127
"""Key that says that `download_slot` is the slot; its value is ignored."""

_META_NUMBERS = {key: number for number, key in META_KEYS.items()}
_STR = frozenset({str})

CALLBACK_SIGNS = {
    **{"0": "parse", "1": "_callback", "2": "_errback", "3": "parse_item", "4": "errback", "5": "parse_page"},
    **{"6": "parse_product", "7": "parse_detail", "8": "parse_category", "9": "parse_listing"},
}
"""Callbacks written as a digit; no Python name begins with one."""

_CALLBACK_NUMBERS = {name: sign for sign, name in CALLBACK_SIGNS.items()}
_PARSE = "parse_"
_PARSE_SIGN = "-"

_URL, _CALLBACK, _ERRBACK, _META, _PRIORITY, _FOUND, _HEADERS, _SOURCE, _DONT_FILTER = (
    field.number for field in (URL, CALLBACK, ERRBACK, META, PRIORITY, FOUND, HEADERS, SOURCE, DONT_FILTER)
)
_SHORT_META = SHORT_META.number
_SLOT_KEY, _DEPTH_KEY = _META_NUMBERS["download_slot"], _META_NUMBERS["depth"]
_NUMBERS_IN_SLOT = _META_NUMBERS | {"download_slot": META_IS_SLOT}
_ALL_META_KEYS = META_KEYS | {META_IS_SLOT: META_KEYS[_SLOT_KEY]}
_BYTES = [bytes((number,)) for number in range(256)]
_LONG_MAP = 0xFF
_LONG_LENGTH = Struct(">BI")
_unpack_four_bytes = Struct(">I").unpack_from
_MOST_SHARED = 0xFF
_NO_SLOT = "the payload can't be read without its slot"

_KIND = 0x0F | _HAS_MAP
_UNUSUAL = _HAS_SOURCE | _HAS_ERRBACK
"""Flags of the second byte that are rarely set."""

Usual = tuple[str, str | None, int | None, int, str | None, bool, int | None, bool]
"""URL, name of the callback, depth, priority, referer and whether that is the source, found time, `dont_filter`."""

Fields = dict[int, Any]
Pack = Callable[[Any], bytes]
Read = Callable[[bytes], Any]


def write(fields: Fields, slot: str, pack_values: Pack) -> bytes:
    """Return the payload of a request in that slot; the fields are consumed."""
    return join(*split(fields, slot, pack_values))


def split(fields: Fields, slot: str, pack_values: Pack) -> tuple[int, int, bytes, list[str]]:
    """Return the arguments of `join`: two bytes of flags, the bytes after them, and the texts, the URL's first."""
    first, second = 0, _URL_IN_MAP
    small, texts = b"", [""]
    url = fields[_URL]
    if url.isprintable():
        del fields[_URL]
        second, texts[0] = url_form(url, slot)
    if _CALLBACK in fields and (sign := _sign_of(fields[_CALLBACK])):
        first = _HAS_CALLBACK
        texts.append(sign)
        del fields[_CALLBACK]
    if _ERRBACK in fields and (sign := _sign_of(fields[_ERRBACK])):
        second |= _HAS_ERRBACK
        texts.append(sign)
        del fields[_ERRBACK]
    if _META in fields and (depth := _short_meta(fields, slot)) is not None:
        first |= _HAS_DEPTH
        small = _BYTES[depth]
    if _PRIORITY in fields and -0x80 <= fields[_PRIORITY] < 0x80:
        second |= _HAS_PRIORITY
        small += _BYTES[fields.pop(_PRIORITY) + 0x80]
    if _FOUND in fields and 0 <= (found_s := fields[_FOUND] - EPOCH_S) <= 0xFFFFFFFF:
        first |= _HAS_FOUND
        small += found_s.to_bytes(4, "big")
        del fields[_FOUND]
    if fields:
        flags, more = _split_rarer(fields, url, texts)
        second |= flags
        small += more
        if fields:
            first |= _HAS_MAP
            packed = pack_values(fields)
            length = len(packed)
            small += (_BYTES[length] if length < _LONG_MAP else _LONG_LENGTH.pack(_LONG_MAP, length)) + packed
    return first, second, small, texts


def join(first: int, second: int, small: bytes, texts: Sequence[str]) -> bytes:
    """Return the payload of the parts that `split` returns."""
    packed, has_six_bits = pack(texts)
    return bytes((first | (SHORT_LAYOUT if has_six_bits else LONG_LAYOUT), second)) + small + packed


def _split_rarer(fields: Fields, url: str, texts: list[str]) -> tuple[int, bytes]:
    flags, small = 0, b""
    if _HEADERS in fields and (referer := _last_referer(fields)) is not None:
        flags = _HAS_REFERER
        small = _relative(referer, url, texts)
    if _SOURCE in fields:
        source = fields[_SOURCE]
        if source is True:
            flags |= _SOURCE_IS_REFERER
            del fields[_SOURCE]
        elif type(source) is str and source.isprintable():
            flags |= _HAS_SOURCE
            small += _relative(source, url, texts)
            del fields[_SOURCE]
    if fields.get(_DONT_FILTER) is True:
        flags |= _NOT_FILTERED
        del fields[_DONT_FILTER]
    return flags, small


def url_form(url: str, slot: str) -> tuple[int, str]:
    """Return how a printable URL is written, as flags of the second byte, and the text to write."""
    if slot:
        if url.startswith(slot, 8) and url.startswith("https://"):
            return _URL_HTTPS, url[8 + len(slot) :]
        if url.startswith(slot, 7) and url.startswith("http://"):
            return _URL_HTTP, url[7 + len(slot) :]
    return _URL_WHOLE, shortened(url)


def depends_on_url(second: int) -> bool:
    """Return whether the other parts that `split` returned with these flags depend on the URL."""
    return second & (_HAS_REFERER | _HAS_SOURCE) != 0 or second & URL_FORM == _URL_IN_MAP


def traces(url: str) -> list[bytes]:
    """Return byte strings of which every payload of a request for this URL contains at least one.

    This doesn't hold for a request whose slot is a mere prefix of its host. A byte string may be empty, so that every
    payload contains it.
    """
    if not url.isprintable():
        return [url.encode("utf-8", "surrogatepass")]
    text = url_form(url, urlsplit(url).hostname or "")[1]
    runs = [packed_start(text), packed_start(shortened(url)), text.lstrip(STARTS).encode()]
    return list(dict.fromkeys(run for run in runs if run is not None))


def read(payload: bytes, slot: str, read_values: Read) -> Fields:
    """Return the fields of a payload, with or without a label.

    Args:
        slot: the slot under which the request is stored.

    Raises:
        DecodeError: its format is unknown, or it can't be read without its slot.
        Exception: any, if the bytes are corrupt.
    """
    if not payload or payload[0] & 0x0F not in _SHORT_LAYOUTS:
        payload = unlabelled(payload)
    if payload and payload[0] & 0x0F in _SHORT_LAYOUTS:
        return _read_short(payload, slot, read_values)
    if payload[:1] != bytes((MAP_LAYOUT,)):
        raise DecodeError(f"the payload's format {payload[:1]!r} is unknown")
    fields: Fields = read_values(payload[1:])
    return fields


def _read_short(payload: bytes, slot: str, read_values: Read) -> Fields:
    first, second = payload[0], payload[1]
    fields: Fields = {}
    at = 2
    if first & _HAS_DEPTH:
        fields[_META], at = {"depth": payload[at]}, at + 1
    if second & _HAS_PRIORITY:
        fields[_PRIORITY], at = payload[at] - 0x80, at + 1
    if first & _HAS_FOUND:
        fields[_FOUND], at = EPOCH_S + _unpack_four_bytes(payload, at)[0], at + 4
    shared = at
    if second & _HAS_REFERER:
        at += 1
    if second & _HAS_SOURCE:
        at += 1
    if first & _HAS_MAP:
        at, end = _map_bounds(payload, at)
        fields |= _read_map(payload[at:end], slot, read_values)
        at = end
    texts = unpack(payload[at:], has_six_bits=first & 0x0F == SHORT_LAYOUT)
    texts.reverse()
    _read_url(fields, second & URL_FORM, texts.pop(), slot)
    if first & _HAS_CALLBACK:
        fields[_CALLBACK] = _name_of(texts.pop())
    if second & _RARER:
        _read_rarer(fields, second, texts, payload, shared)
    if texts:
        raise DecodeError("the payload has more texts than it should")
    return fields


def read_usual(payload: bytes, slot: str) -> Usual | None:
    """Return what `read` would, but faster, for a payload with only the fields of `Usual`; None for any other.

    Raises:
        Exception: any, if the bytes are corrupt.
    """
    first, second = payload[0], payload[1]
    form = second & URL_FORM
    if first & _KIND != SHORT_LAYOUT or second & _UNUSUAL or form > _URL_HTTPS or not slot:
        return None
    depth, priority, found_s, referer, at = None, 0, None, None, 2
    if first & _HAS_DEPTH:
        depth, at = payload[at], at + 1
    if second & _HAS_PRIORITY:
        priority, at = payload[at] - 0x80, at + 1
    if first & _HAS_FOUND:
        found_s, at = EPOCH_S + _unpack_four_bytes(payload, at)[0], at + 4
    has_referer = second & _HAS_REFERER != 0
    texts = unpack(payload[at + has_referer :], has_six_bits=True)
    has_callback = first & _HAS_CALLBACK != 0
    if len(texts) != 1 + has_callback + has_referer:
        return None
    url = "https://" + slot + texts[0] if form else lengthened(texts[0])
    if has_referer:
        referer = _absolute(texts[-1], url, payload[at])
    callback = _name_of(texts[1]) if has_callback else None
    is_source = second & _SOURCE_IS_REFERER != 0
    return url, callback, depth, priority, referer, is_source, found_s, second & _NOT_FILTERED != 0


def _read_url(fields: Fields, form: int, text: str, slot: str) -> None:
    if form == _URL_WHOLE:
        fields[_URL] = lengthened(text)
    elif form != _URL_IN_MAP:
        if not slot:
            raise DecodeError(_NO_SLOT)
        fields[_URL] = ("https://" if form == _URL_HTTPS else "http://") + slot + text


def _read_rarer(fields: Fields, flags: int, texts: list[str], payload: bytes, at: int) -> None:
    """Read the rarer fields; the URL must have been read.

    Args:
        at: position of the bytes that say how many letters the other URLs share with it.
    """
    if flags & _HAS_ERRBACK:
        fields[_ERRBACK] = _name_of(texts.pop())
    if flags & _HAS_REFERER:
        referer, at = _absolute(texts.pop(), fields[_URL], payload[at]), at + 1
        if _HEADERS in fields:
            fields[_HEADERS][REFERER_NUMBER] = referer.encode()
        else:
            fields[_HEADERS] = {REFERER_NUMBER: referer.encode()}
    if flags & _SOURCE_IS_REFERER:
        fields[_SOURCE] = True
    elif flags & _HAS_SOURCE:
        fields[_SOURCE] = _absolute(texts.pop(), fields[_URL], payload[at])
    if flags & _NOT_FILTERED:
        fields[_DONT_FILTER] = True


@lru_cache(maxsize=1000)
def _sign_of(name: str | bool) -> str | None:
    """Return the text that stands for a callback's name, None if the name goes into the map."""
    if type(name) is not str or not (name.isascii() and name.isidentifier()):
        return None
    sign = _CALLBACK_NUMBERS.get(name)
    if sign is not None:
        return sign
    return _PARSE_SIGN + name[len(_PARSE) :] if name.startswith(_PARSE) else name


def _name_of(sign: str) -> str:
    if sign[:1] == _PARSE_SIGN:
        return _PARSE + sign[1:]
    return CALLBACK_SIGNS.get(sign, sign)


def _short_meta(fields: Fields, slot: str) -> int | None:
    """Replace `meta` by its short form; return the depth instead if that is the only key and fits into a byte."""
    meta = fields[_META]
    if len(meta) == 1 and type(depth := meta.get("depth")) is int and 0 <= depth <= 0xFF:
        del fields[_META]
        return depth
    if not _STR.issuperset(map(type, meta)):
        return None
    is_slot = bool(slot) and type(own_slot := meta.get("download_slot")) is str and own_slot == slot
    number_of = (_NUMBERS_IN_SLOT if is_slot else _META_NUMBERS).get
    fields[_SHORT_META] = short = {number_of(key, key): value for key, value in meta.items()}
    if is_slot:
        short[META_IS_SLOT] = None
    del fields[_META]
    return None


def _read_map(packed: bytes, slot: str, read_values: Read) -> Fields:
    fields: Fields = read_values(packed)
    short = fields.pop(_SHORT_META, None)
    if short is not None:
        fields[_META] = {key if type(key) is str else _ALL_META_KEYS[key]: value for key, value in short.items()}
        if META_IS_SLOT in short:
            if not slot:
                raise DecodeError(_NO_SLOT)
            fields[_META][META_KEYS[_SLOT_KEY]] = slot
    return fields


def _last_referer(fields: Fields) -> str | None:
    """Remove the referer from the headers and return it, if it is the last of them and has a short form."""
    headers = fields[_HEADERS]
    value = headers.get(REFERER_NUMBER)
    if type(value) is not bytes or next(reversed(headers)) != REFERER_NUMBER or not value.isascii():
        return None
    referer = value.decode("ascii")
    if not referer.isprintable():
        return None
    del headers[REFERER_NUMBER]
    if not headers:
        del fields[_HEADERS]
    return referer


def _relative(text: str, url: str, texts: list[str]) -> bytes:
    """Append the part of a URL that differs from the request's to the texts; return the length of the common part."""
    shared = 0
    if url.isascii() and text.isascii():
        length = min(len(text), len(url), _MOST_SHARED)
        differing = int.from_bytes(text[:length].encode(), "big") ^ int.from_bytes(url[:length].encode(), "big")
        shared = length - (differing.bit_length() + 7) // 8
    texts.append(text[shared:] if shared else shortened(text))
    return _BYTES[shared]


def _absolute(text: str, url: str, shared: int) -> str:
    if len(url) < shared:
        raise DecodeError("the payload's URL is shorter than what others have in common with it")
    return url[:shared] + text if shared else lengthened(text)


def _map_bounds(payload: bytes, at: int) -> tuple[int, int]:
    length, at = payload[at], at + 1
    if length == _LONG_MAP:
        length, at = int.from_bytes(payload[at : at + 4], "big"), at + 4
    return at, at + length


# Texts
#
# The 64 signs are those of `SIGNS`. Four of them are packed into three bytes by Python's Base64 functions, which are
# written in C. Texts with other letters are written as UTF-8, one per line.

_FILL, _BREAK, _END = "\x00\n\x01"
_BEGINNINGS = {"\x02": "https://www.", "\x03": "https://", "\x04": "http://"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEF-/._?=&%+~:,;()#"

STARTS = "".join(_BEGINNINGS)
"""Marks that stand for common beginnings of URLs."""

SIGNS = "".join((_FILL, _LETTERS, _BREAK, *_BEGINNINGS, _END))
"""Signs by their six-bit value. The first pads the last byte; the last ends the texts."""

_BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_TO_BASE64 = bytes(ord(_BASE64[SIGNS.index(chr(code))]) if chr(code) in SIGNS else ord("=") for code in range(256))
_FROM_BASE64 = bytes(ord(SIGNS[_BASE64.index(chr(code))]) if chr(code) in _BASE64 else 0 for code in range(256))
_ENDS = [(_END + _FILL * (-(length + 1) % 4)).encode() for length in range(4)]
_FILLS = frozenset(_FILL * length for length in range(4))


def pack(texts: Sequence[str]) -> tuple[bytes, bool]:
    """Return printable texts, at least one, as bytes, and whether the bytes have six bits a letter."""
    signs = _BREAK.join(texts).encode()
    packed = (signs + _ENDS[len(signs) & 3]).translate(_TO_BASE64)
    if b"=" in packed:
        return signs + b"\n", False
    return a2b_base64(packed).rstrip(b"\0"), True


def packed_start(text: str) -> bytes | None:
    """Return the beginning of the bytes that `pack` returns for a text followed by others, in six bits a letter.

    None if the text has other letters.
    """
    whole = len(text) // 4 * 4
    packed = text.encode().translate(_TO_BASE64)
    return None if b"=" in packed else a2b_base64(packed[:whole])


def unpack(packed: bytes, *, has_six_bits: bool) -> list[str]:
    """Return the packed texts.

    Raises:
        ValueError: the bytes are not packed texts.
    """
    if has_six_bits:
        filled = packed + b"\0\0"[: -len(packed) % 3]
        signs, end, fill = b2a_base64(filled, newline=False).translate(_FROM_BASE64).decode("ascii").partition(_END)
        if _FILL in signs or fill not in _FILLS:
            end = ""
    else:
        signs, end, fill = packed.decode().rpartition(_BREAK)
    if not end or (fill and not has_six_bits):
        raise ValueError("the texts don't end where they should")
    return signs.split(_BREAK)


def shortened(url: str) -> str:
    """Return a URL with a mark in place of a common beginning; `lengthened` reverses it."""
    if url.startswith("http"):
        for mark, start in _BEGINNINGS.items():
            if url.startswith(start):
                return mark + url[len(start) :]
    return url


def lengthened(text: str) -> str:
    """Return the URL that `shortened` was given."""
    start = _BEGINNINGS.get(text[:1])
    return text if start is None else start + text[1:]
