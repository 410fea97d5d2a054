"""A bandwidth limit holds on average."""

from __future__ import annotations

from edge_appliance.core.pace import Pace


def test_bodies_pay_for_their_time() -> None:
    """Over many bodies the rate is the limit, whatever their sizes; an idle time is not saved up."""
    pace, now_s, sent = Pace(1000), 100.0, 0
    for size_bytes in (500, 10, 3000, 1, 700) * 20:
        now_s += pace.wait_s(now_s)
        pace.start(size_bytes, now_s)
        sent += size_bytes
    now_s += pace.wait_s(now_s)
    assert abs((now_s - 100.0) - sent / 1000) < 1e-6
    assert pace.wait_s(now_s + 50) == 0
    pace.start(1000, now_s + 50)
    assert pace.wait_s(now_s + 50) == 1.0


def test_no_limit_never_waits() -> None:
    """Zero is no limit."""
    pace = Pace(0)
    pace.start(10**12, 0.0)
    assert pace.wait_s(0.0) == 0
