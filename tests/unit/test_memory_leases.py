"""The expiry of leases in process, after any grants, renewals and ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scrapy_prioqueue.frontier.memory.lanes import Envelope
from scrapy_prioqueue.frontier.memory.leases import Held, Leases

IDS = st.integers(0, 4)


@given(st.lists(st.tuples(IDS, st.integers(0, 9) | st.none(), st.integers(0, 9))))
def test_they_have_expired_when_the_first_of_them_has(steps: list[tuple[int, int | None, int]]) -> None:
    leases, expiries_ms = Leases(), dict[int, int]()

    for lease_id, expiry_ms, now_ms in steps:
        if expiry_ms is None:
            if expiries_ms.pop(lease_id, None) is not None:
                leases.end(lease_id)
        elif lease_id in expiries_ms:
            leases.renew(lease_id, expiry_ms)
            expiries_ms[lease_id] = expiry_ms
        else:
            leases.grant(Held("shop.example", Envelope(0, lease_id, 1, b""), "w"), expiry_ms)
            expiries_ms[lease_id] = expiry_ms
        assert leases.have_expired(now_ms) == any(at_ms <= now_ms for at_ms in expiries_ms.values())
