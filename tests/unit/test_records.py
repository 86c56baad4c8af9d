"""An import accepts known fields, types and ranges, and rejects all others before it writes anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scrapy_prioqueue.errors import PrioQueueError
from scrapy_prioqueue.frontier.redis.keys import LAYOUT
from scrapy_prioqueue.frontier.redis.operators.records import EXPORTED, FORMAT, STATE, VERSION, Record, checked

STATE_VALUES = {"tiers": '["normal"]', "order": "lifo", "seen_shape": "exact 0 64 64 p18:8 s16:384"}
REQUEST = {"kind": "pending", "id": 1, "attempts": 0, "rank": 0, "slot": "shop.example", "payload": "cGF5"}


def export_of(*records: Record, **state: Any) -> list[Record]:
    """Return an export with these records, and these fields in its state."""
    head = {"kind": "frontier", "format": FORMAT, "version": VERSION, "layout": LAYOUT, "name": "x"}
    head |= {"exported_ms": 1, "phase": "open", "epoch": 1, "seen": 0, "counts": {"accepted": 1}}
    return [{**head, "state": {**STATE_VALUES, **state}}, *records, {"kind": "end", "records": len(records)}]


def rejection_of(records: list[Record]) -> str:
    with pytest.raises(PrioQueueError) as caught:
        list(checked(records))
    return str(caught.value)


def test_all_exported_fields_of_the_state_may_be_imported() -> None:
    assert STATE.keys() == set(EXPORTED)


def test_good_records_are_taken() -> None:
    records = export_of(REQUEST, {"kind": "turn", "slot": "", "turn": 7})

    assert list(checked(records)) == records[:-1]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("lanes", "2000000"), ("lanes", "NaN"), ("lanes", 2), ("tiers", "[1]"), ("tiers", "[" * 100_000)),
        *(("order", "fastest"), ("suspect_attempts", "0"), ("seen_shape", "exact 0 64 64 p64:8")),
        *(("seen_shape", "bloom 0 1 1 b999999999:1:1:1"), ("throttle", '{"start_delay": "1"}')),
        *(("weights", json.dumps([1] * 1000)), ("discovery", "[-1]"), ("paused", "yes"), ("dead_on", "whatever")),
        *(("revisit_s", "1e999"), ("sequence", "-1"), ("unknown", "1")),
    ],
)
def test_field_of_the_state_that_is_wrong_is_refused_by_name(field: str, value: object) -> None:
    text = rejection_of(export_of(**{field: value}))

    assert text.startswith("line 1: ")
    assert field in text or text.startswith("line 1: state of frontier is")


@pytest.mark.parametrize(
    ("record", "field"),
    [
        *(({**REQUEST, field: value}, field) for field, value in [("id", -1), ("id", 2**64), ("id", True)]),
        *(({**REQUEST, field: value}, field) for field, value in [("attempts", 256), ("attempts", "1")]),
        *(({**REQUEST, field: value}, field) for field, value in [("rank", 2**60), ("rank", 1.5), ("rank", None)]),
        *(({**REQUEST, field: value}, field) for field, value in [("slot", "x" * 5000), ("slot", 5)]),
        *(({**REQUEST, field: value}, field) for field, value in [("payload", "?"), ("payload", []), ("other", 1)]),
        ({name: value for name, value in REQUEST.items() if name != "rank"}, "rank"),
        ({**REQUEST, "kind": "delayed", "due_ms": float("nan")}, "due_ms"),
        ({"kind": "limits", "field": "*", "value": '{"delay": -1}'}, "value"),
        ({"kind": "limits", "field": "*", "value": '{"delays": 1}'}, "value"),
        ({"kind": "limits", "field": "*", "value": "no JSON"}, "value"),
        ({"kind": "budgets", "field": "*", "value": '{"pages": "many"}'}, "value"),
        ({"kind": "delays", "field": "xslot", "value": "1"}, "field"),
        ({"kind": "used", "field": "pages:*", "value": "many"}, "value"),
        ({"kind": "passes", "field": "v", "value": "-1"}, "value"),
        ({"kind": "paced", "slot": "", "ms": "soon"}, "ms"),
        ({"kind": "turn", "slot": "", "turn": 2**64}, "turn"),
        ({"kind": "turn", "slot": "", "turn": 1, "tier": 200}, "tier"),
        ({"kind": "seen", "bucket": "9:1", "members": []}, "bucket"),
        ({"kind": "seen", "bucket": "}:state", "members": []}, "bucket"),
        ({"kind": "seen", "bucket": "0:1", "members": [2**63]}, "members"),
        ({"kind": "packed", "bucket": "0:1", "fields": {"x": ""}}, "fields"),
        ({"kind": "marks", "members": "cGF5"}, "members"),
        ({"kind": "ended", "crawl_id": None, "ended_ms": 1}, "crawl_id"),
        ({"kind": ["pending"]}, "kind"),
    ],
)
def test_record_that_is_wrong_is_refused_with_its_line_and_field(record: Record, field: str) -> None:
    text = rejection_of(export_of(REQUEST, record))

    assert text.startswith("line 3: ")
    assert field in text
    assert len(text) < 400


@pytest.mark.parametrize("field", ["name", "epoch", "counts", "state"])
def test_head_without_a_field_is_refused(field: str) -> None:
    records = export_of()
    del records[0][field]

    assert f"line 1: frontier has no field '{field}'" in rejection_of(records)
