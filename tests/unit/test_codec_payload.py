"""Payloads: their size, the documented format, and the rejection of other bytes."""

from __future__ import annotations

import json
import pickle
import re
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pytest
from scrapy import Request, Spider
from scrapy.http import Headers

from scrapy_prioqueue.codec import RequestCodec, fields, layouts, standard, values
from scrapy_prioqueue.codec.plain import read_plain
from scrapy_prioqueue.errors import DecodeError, EncodeError
from tests.support.exact import exact, exact_request

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "payload.md").read_text(encoding="utf-8")
URL = "https://shop.example/p/1"
NAN_KEY = b"\x81\xcb\x7f\xf8" + b"\x00" * 6 + b"\x01"


class Books(Spider):
    name = "books"

    def parse_product(self, response: Any) -> None: ...

    def parse_next(self, response: Any) -> None: ...


@pytest.fixture
def spider() -> Books:
    return Books()


@pytest.fixture
def codec(spider: Books) -> RequestCodec:
    return RequestCodec(spider)


def documented(heading: str) -> dict[int, str]:
    """Return the rows of the first table below a text: number and name."""
    table = re.split(r"\n\n", REFERENCE.split(heading, 1)[1].split("| --- ", 1)[1], maxsplit=1)[0]
    return {int(number): name for number, name in re.findall(r"^\| (\d+) \| `([^`]+)`", table, re.MULTILINE)}


def with_meta(packed: bytes) -> bytes:
    """Return a payload whose meta is the map ``{"x": …}`` with these bytes in it."""
    return b"\x01\x82\x00" + bytes(msgpack.packb(URL)) + b"\x02\x81\xa1x" + packed


def extension(code: int, content: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(code, content)))


def marked(code: int, *items: Any) -> bytes:
    return bytes(msgpack.packb([msgpack.ExtType(code, b""), *items]))


def many_ways(levels: int) -> bytes:
    """Return a list of lists in which there are two ways from each to the next, so two to the power of that many."""
    lists: list[Any] = [[msgpack.ExtType(12, b""), 0, []]]
    for number in range(1, levels + 1):
        reference = msgpack.ExtType(23, bytes([number - 1]))
        lists.append([msgpack.ExtType(12, b""), number, [reference, reference]])
    return bytes(msgpack.packb(lists))


def test_the_documented_example_is_what_is_written(codec: RequestCodec, spider: Books) -> None:
    example = REFERENCE.split("## Example", 1)[1]
    listing = re.findall(r"^ *((?:[0-9a-f]{2})+(?: (?:[0-9a-f]{2})+)*)(?:  |$)", example, re.MULTILINE)
    request = Request(URL, callback=spider.parse_product, meta={"depth": 3})

    payload = codec.encode(request, "shop.example")

    as_map = bytes.fromhex("".join(listing)).removeprefix(payload)
    assert f"these {len(payload)} bytes" in example
    assert f"these {len(as_map)} bytes" in example
    assert exact_request(codec.decode(as_map)) == exact_request(request)


def test_the_documented_numbers_are_those_of_the_code() -> None:
    numbered = {number: field.name for number, field in fields.STORED.items()}
    headers = {number: name.decode() for number, name in fields.HEADER_NAMES.items()}
    callbacks = dict(re.findall(r"^\| `(\d)` \| `(\w+)` \|$", REFERENCE, re.MULTILINE))

    assert documented("## Fields") == numbered
    assert documented("## Headers") == headers
    assert documented("### Well-known keys of meta") == layouts.META_KEYS | {layouts.META_IS_SLOT: "download_slot"}
    assert callbacks == layouts.CALLBACK_SIGNS
    assert f"{layouts.EPOCH_S:,}" in REFERENCE
    reader = values.ValueReader()
    assert set(documented("These types are extensions")) == set(reader._readers)  # noqa: SLF001
    assert set(documented("These types are arrays")) == set(reader._builders)  # noqa: SLF001
    rows = re.split(r"\n\n", REFERENCE.split("| standard | ", 1)[1], maxsplit=1)[0].splitlines()[2:]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == set(standard.BY_NAME)
    assert f"{standard.MAX_PATTERNS:,} letters" in REFERENCE
    assert f"More than {values.MAX_COLLISIONS} keys" in REFERENCE
    assert f"more than {values.SMALL:,} bytes" in REFERENCE
    assert f"deeper than {values.MAX_DEPTH} levels" in REFERENCE
    assert f"more than {values.MAX_VISITS:,} times" in REFERENCE


@pytest.mark.parametrize(
    ("arguments", "overhead"),
    [
        ({}, 3),
        ({"meta": {"depth": 3}}, 4),
        ({"meta": {"depth": 3}, "callback": "parse_product"}, 6),
        ({"meta": {"depth": 3}, "callback": "parse_next"}, 9),
        ({"meta": {"depth": 3}, "headers": {"Referer": f"{URL}/{'y' * 8}"}}, 12),
        ({"meta": {"depth": 3}, "priority": -20, "dont_filter": True}, 5),
        ({"meta": {"depth": 3, "download_slot": "shop.example"}}, 11),
    ],
)
def test_a_plain_link_costs_six_bits_a_letter_of_its_path_and_a_few_bytes(
    codec: RequestCodec, spider: Books, arguments: dict[str, Any], overhead: int
) -> None:
    if "callback" in arguments:
        arguments = arguments | {"callback": getattr(spider, arguments["callback"])}
    url = f"{URL}/{'x' * 59}"

    assert len(codec.encode(Request(url, **arguments), "shop.example")) - 48 == overhead


def test_defaults_are_not_stored(codec: RequestCodec) -> None:
    given = Request(
        URL,
        callback=None,
        method="GET",
        headers={},
        body=b"",
        cookies={},
        meta={},
        encoding="utf-8",
        priority=0,
        dont_filter=False,
        errback=None,
        flags=[],
        cb_kwargs={},
    )

    assert codec.encode(given) == codec.encode(Request(URL))
    assert len(codec.encode(given)) == 2 + 14


@pytest.mark.parametrize(
    ("payload", "request_"),
    [
        ("0181 00b8 68747470733a2f2f73686f702e6578616d706c652f702f31", Request(URL)),
        (
            "018502 81a5646570746803 00b8 68747470733a2f2f73686f702e6578616d706c652f702f31 0381 00c404 683a2f2f 0405"
            " 06c3",
            Request(URL, meta={"depth": 3}, headers={"Referer": "h://"}, priority=5, dont_filter=True),
        ),
        (
            "0200 0fc2 ac 73686f702e6578616d706c65 0181 00b8 68747470733a2f2f73686f702e6578616d706c652f702f31",
            Request(URL),
        ),
    ],
)
def test_payloads_of_the_first_layout_are_read_in_any_slot(
    codec: RequestCodec, payload: str, request_: Request
) -> None:
    stored = bytes.fromhex(payload.replace("0200 0fc2 ac", "0200 0f 92c2ac"))
    for slot in ("", "shop.example"):
        assert exact_request(codec.decode(stored, slot)) == exact_request(request_)
        assert read_plain(stored, slot).url == URL


@pytest.mark.parametrize("request_", [Request(URL), Request("data:,", meta={"download_slot": "shop.example"})])
def test_a_payload_without_its_slot_is_refused(codec: RequestCodec, request_: Request) -> None:
    payload = codec.encode(request_, "shop.example")

    with pytest.raises(DecodeError, match="without its slot"):
        codec.decode(payload)
    with pytest.raises(DecodeError, match="without its slot"):
        read_plain(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x03",
        b"\x03\x00",
        b"\x04\x00https://a.example",
        b"\x04\x00https://a.example/\n/more\n",
        b"\x04\x00no scheme\n",
        b"\x04\x03\n",
        b"\x84\x00https://a.example\n",
        b"\x04\x04\x63https://a.example/\nx\n",
        b"\x14\x00\x05\x80https://a.example/\n",
        b"\x14\x00\x04\x81\x11\x81\x7ehttps://a.example/\n",
        b"\x14\x00\xff\xff\xff\xff\xffhttps://a.example/\n",
        b"\x23\x01\x03\xb1\x0b\x1c\xff",
    ],
    ids=repr,
)
def test_broken_short_forms_are_refused(codec: RequestCodec, payload: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode(payload, "shop.example")


def test_payloads_of_other_programs_are_read(codec: RequestCodec, spider: Books) -> None:
    packed = msgpack.packb(
        {1: "parse_product", 0: URL, 3: {b"X-Token": [b"a", b"b"], 0: b"https://r/"}, 4: -2, 11: ["f"]}
    )

    request = codec.decode(b"\x01" + bytes(packed))

    assert (request.url, request.callback, request.priority) == (URL, spider.parse_product, -2)
    assert request.headers == Headers({"X-Token": ["a", "b"], "Referer": "https://r/"})
    assert request.flags == ["f"]


def test_messagepacks_own_timestamp_is_read_as_a_datetime(codec: RequestCodec) -> None:
    stamp = msgpack.Timestamp(1709164800, 123456789)

    request = codec.decode(with_meta(msgpack.packb(stamp)))

    assert exact(request.meta["x"]) == exact(datetime(2024, 2, 29, 0, 0, 0, 123456, tzinfo=timezone.utc))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        b"\x00\x81\x00\xa1x",
        b"\x02\x81\x00\xa1x",
        b"\x11\x81\x00\xa1x",
        b"\x01\x80",
        b"\x01\x90",
        b"\x01\xc0",
        b"\x01\xc1",
        b"\x01\x01",
        URL.encode(),
        json.dumps({"url": URL}).encode(),
        json.dumps([URL]).encode(),
        pickle.dumps({"url": URL}),
        pickle.dumps(print),
        b"\x01" + pickle.dumps(print),
        b"\x01" + json.dumps({"url": URL}).encode(),
        b"\x01" + bytes(msgpack.packb({0: URL})) + b"\x00",
        b"\x01" + bytes(msgpack.packb({"url": URL})),
        b"\x01" + bytes(msgpack.packb({0: URL, 99: 1})),
        b"\x01" + bytes(msgpack.packb({0: URL, -1: 1})),
        b"\x01" + bytes(msgpack.packb({0: "no scheme"})),
        b"\x01\x82\x00\xa1x" + NAN_KEY,
    ],
    ids=repr,
)
def test_foreign_and_broken_bytes_are_refused(codec: RequestCodec, payload: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode(payload)


@pytest.mark.parametrize("number", sorted(set(documented("## Fields")) - {6}))
def test_a_field_of_another_type_is_refused(codec: RequestCodec, number: int) -> None:
    with pytest.raises(DecodeError):
        codec.decode(b"\x01" + bytes(msgpack.packb({0: URL, number: 1.5})))


@pytest.mark.parametrize(
    "headers",
    [{10: b"x"}, {-1: b"x"}, {"Referer": b"x"}, {0: "x"}, {0: 1}, {0: None}, {0: ["x"]}, {0: {b"x": 1}}, {None: b"x"}],
    ids=repr,
)
def test_headers_that_are_none_are_refused(codec: RequestCodec, headers: Any) -> None:
    with pytest.raises(DecodeError):
        codec.decode(b"\x01" + bytes(msgpack.packb({0: URL, 3: headers})))


@pytest.mark.parametrize(
    "packed",
    [
        # marks that are not the first item of an array
        extension(1, b""),
        msgpack.packb([1, msgpack.ExtType(1, b"")]),
        msgpack.packb([msgpack.ExtType(1, b""), msgpack.ExtType(2, b"")]),
        msgpack.packb({"k": msgpack.ExtType(2, b"")}),
        msgpack.packb({msgpack.ExtType(2, b""): 1}),
        # unknown codes
        extension(0, b""),
        extension(15, b"x"),
        extension(127, b"x" * 8),
        b"\xc7\x05\xff" + b"x" * 5,
        msgpack.packb([msgpack.ExtType(99, b""), 1]),
        # contents that are no such value
        extension(18, b"junk"),
        extension(18, "١".encode()),
        extension(18, b"1E+99999999999999999999"),
        extension(19, b"short"),
        extension(20, b"2024-02-30"),
        extension(20, b"\xff"),
        marked(2, [1]),
        marked(3, {"a": 1}),
        marked(4, 1, 2, 3),
        marked(4, "x"),
        marked(5, 10**10),
        marked(5, "x"),
        marked(5, 1, 2, 3, 4, 5, 6, 7, 8),
        marked(6, "25:00", None, 0),
        marked(6, "01:00", None, 2),
        marked(7),
        marked(7, "junk", None, 0),
        marked(7, 20240229, None, 0),
        marked(7, "2024-02-29T00:00:00", 3600, 0),
        msgpack.packb(msgpack.Timestamp(2**62)),
        # references to what isn't there, two objects of one number, and what hashes would follow for ever
        extension(23, b"\x00"),
        extension(23, b""),
        msgpack.packb([msgpack.ExtType(23, b"\x00"), [msgpack.ExtType(12, b""), 0, []]]),
        marked(12, 0, [msgpack.ExtType(23, b"\x00")]),
        msgpack.packb([[msgpack.ExtType(12, b""), 0, []], [msgpack.ExtType(12, b""), 0, []]]),
        marked(12, "0", []),
        marked(12, 0),
        marked(12, 0, [msgpack.ExtType(1, b""), 1]),
        many_ways(30),
        # keys that can't be hashed
        msgpack.packb({(1, 2): 1}),
        b"\x81" + marked(2, 1) + b"\x01",
        b"\x81\x80\x01",
        b"\x81" + extension(17, b"x") + b"\x01",
        # sizes and depths that are not there
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x91" * 100_000 + b"\x00",
        b"\x81\x00" * 100_000 + b"\x00",
        b"\x92\xc7\x00\x01" * 100_000 + b"\x00",
    ],
    ids=lambda packed: repr(packed[:12]),
)
def test_hostile_values_are_refused(codec: RequestCodec, packed: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode(with_meta(packed))
    with suppress(DecodeError):
        read_plain(with_meta(packed))


def test_a_value_with_many_references_is_read_up_to_a_limit(codec: RequestCodec) -> None:
    levels = codec.decode(with_meta(many_ways(14))).meta["x"]

    assert levels[14][0] is levels[14][1] is levels[13]
    assert len(repr(read_plain(with_meta(many_ways(14))).meta)) > 2**14


def test_objects_with_too_many_paths_to_them_are_rejected(codec: RequestCodec) -> None:
    value: list[Any] = []
    for _ in range(30):
        value = [value, value]

    with pytest.raises(EncodeError, match="too often in one request"):
        codec.encode(Request(URL, meta={"value": value}))


PRIME = 2**61 - 1
"""Python's hash of a number is its remainder by this."""


@pytest.mark.parametrize(
    "key",
    [
        lambda number: extension(16, (PRIME * (number + 2**10)).to_bytes(16, "big")),
        lambda number: extension(18, str(PRIME * number).encode()),
        lambda number: extension(19, (PRIME * number).to_bytes(16, "big")),
        lambda number: marked(4, -1000003.0 * number, float(number)),
        lambda number: marked(1, msgpack.ExtType(18, str(PRIME * number).encode())),
    ],
)
def test_keys_made_to_share_a_hash_are_refused(codec: RequestCodec, key: Any) -> None:
    keys = [key(number) for number in range(1, 1000)]
    as_map = b"\xde" + len(keys).to_bytes(2, "big") + b"".join(key + b"\xc0" for key in keys)
    as_set = b"\xdc" + (len(keys) + 1).to_bytes(2, "big") + extension(2, b"") + b"".join(keys)

    for packed in (as_map, as_set):
        with pytest.raises(DecodeError, match="same hash"):
            codec.decode(with_meta(packed))


def test_many_keys_of_all_types_are_restored(codec: RequestCodec) -> None:
    kinds = (int, str, float, Decimal, complex, lambda number: (number, -number), lambda number: 2**70 + number)
    meta = {"map": {kind(number): number for kind in kinds for number in range(1000)}}
    meta["set"] = set(meta["map"])  # type: ignore[assignment]

    assert codec.decode(codec.encode(Request(URL, meta=meta))).meta == meta


def test_regular_expressions_that_take_long_to_compile_are_refused(codec: RequestCodec) -> None:
    wide = [msgpack.ExtType(8, b""), "Pattern", "[Ā-\uffff]", 2]
    for value in ([wide] * 4, [[msgpack.ExtType(8, b""), "Pattern", "x" * 300, 0]] * 4):
        with pytest.raises(DecodeError, match="too many regular expressions"):
            codec.decode(with_meta(msgpack.packb(value)))
    assert len(codec.decode(with_meta(msgpack.packb([wide] * 3))).meta["x"]) == 3


@pytest.mark.parametrize(
    "zone",
    [
        *("../../../../etc/passwd", "/etc/passwd", "Europe/../Europe/Paris", "Europe", "Mars/Olympus", "", "."),
        *("Europe/Paris\x00", "\ud800", "os.path/x", "tzdata.zi", b"UTC", ["UTC"], 0),
    ],
    ids=repr,
)
def test_a_zone_that_is_none_is_refused(codec: RequestCodec, zone: Any) -> None:
    items = [msgpack.ExtType(7, b""), "2024-02-29T00:00:00", zone, 0]

    with pytest.raises(DecodeError):
        codec.decode(with_meta(msgpack.packb(items, unicode_errors="surrogatepass")))


def test_an_error_is_a_short_line_for_any_payload(codec: RequestCodec) -> None:
    huge = extension(16, b"\x7f" * 10_000)
    for payload in (
        with_meta(b"\xc1"),
        b"\x01" + bytes(msgpack.packb({0: URL, 1: "\ud800\n" * 10_000}, unicode_errors="surrogatepass")),
        b"\x01" + bytes(msgpack.packb({0: URL, 13: "x" * 10_000})),
        b"\x01" + bytes(msgpack.packb({0: "no scheme" * 10_000})),
        b"\x01\x82\x00" + bytes(msgpack.packb(URL)) + huge + b"\x01",
        b"\x01\x82\x00" + bytes(msgpack.packb(URL)) + b"\x03\x81" + huge + b"\x01",
        b"\x01\x82\x00" + bytes(msgpack.packb(URL)) + b"\x0e\x81" + huge + b"\x01",
    ):
        with pytest.raises(DecodeError) as caught:
            codec.decode(payload)

        message = str(caught.value)
        assert len(message) < 400
        assert message.isprintable()


def test_a_refused_payload_leaves_the_codec_usable(codec: RequestCodec) -> None:
    payload = codec.encode(Request(URL, meta={"x": (1,)}))

    for broken in (with_meta(b"\x93" + extension(1, b"")), with_meta(extension(1, b""))):
        with pytest.raises(DecodeError):
            codec.decode(broken)
        assert codec.decode(payload).meta == {"x": (1,)}


def test_every_truncation_is_refused(codec: RequestCodec, spider: Books) -> None:
    request = Request(
        URL, callback=spider.parse_product, meta={"a": (1, {2}), "b": datetime(2024, 1, 1)}, headers={"A": "b"}
    )
    payload = codec.encode(request)

    for length in range(len(payload)):
        with pytest.raises(DecodeError):
            codec.decode(payload[:length])
