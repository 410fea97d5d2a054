"""Retrying rejected lines: what is sent, and what stays when nobody takes it. An integration test goes all the way."""

import asyncio

import pytest

from edge_appliance import retry
from edge_appliance.core.delivery import ArrivalClock, DeliveryResult, LineError, Reason
from edge_appliance.core.route import RouteSettings, route_table
from edge_appliance.dead_letters import DeadLetters, read_dead_letters
from edge_appliance.inbox import Inbox
from edge_appliance.metrics import Metrics


def kept(directory):
    """Line numbers of the letters that are there."""
    return [letter["line"] for letter in read_dead_letters(directory / "dead")]


def run(directory, errors, work, *, topic="devices/d1/lp", limit_bytes=1 << 20):
    """Retry letters with `work(inbox)` running beside; returns the outcomes that were counted."""

    async def both():
        letters = DeadLetters(directory / "dead", 1 << 20, Metrics())
        inbox = Inbox(limit_bytes, 0.001, Metrics(), asyncio.get_running_loop().call_soon_threadsafe)
        for error in errors:
            letters.append(1, "mqtt", topic, [error])
        routes = route_table([RouteSettings("devices/{device}/lp", "edge")])
        asked = retry.Retry(letters, inbox, ArrivalClock(), lambda: routes)
        counts, _ = await asyncio.gather(asked.retry(), asyncio.to_thread(work, inbox))
        letters.close()
        return {outcome: count for outcome, count in counts.items() if count}

    return asyncio.run(both())


def rejected(line=1, sample=b"m v=1", reason=Reason.TYPE_CONFLICT):
    """One rejected line."""
    return LineError(line, 1, reason, "", sample)


def nobody(inbox):
    """An ingest thread that takes nothing."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (rejected(sample=b"x" * 196), "not_taken"),
        (rejected(sample=b"x" * 197), "cut"),
        (rejected(sample=b"x" * 5000, reason=Reason.INTERNAL_ERROR), "not_taken"),
        (rejected(0, b"m v=1", Reason.PAYLOAD_TOO_LARGE), "cut"),
        (rejected(0, b"m v=1", Reason.NO_ROUTE), "not_taken"),
        (rejected(0, b"m v=1", Reason.INVALID_UTF8), "no_route"),
        (rejected(sample=b""), "no_line"),
    ],
)
def test_only_whole_lines_are_sent(tmp_path, monkeypatch, error, outcome):
    """A letter whose line may have been cut is never sent, and none that was not taken goes."""
    monkeypatch.setattr(retry, "_TAKEN_WITHIN_S", 0.05)
    assert run(tmp_path, [error], nobody) == {outcome: 1}
    assert kept(tmp_path) == [error.line]


def test_topic_without_a_route(tmp_path):
    """It is said, and the letter stays."""
    assert run(tmp_path, [rejected()], nobody, topic="elsewhere") == {"no_route": 1}
    assert kept(tmp_path) == [1]


def test_full_inbox(tmp_path):
    """Nothing is sent, and everything stays."""
    assert run(tmp_path, [rejected(1), rejected(2)], nobody, limit_bytes=0) == {"not_taken": 2}
    assert kept(tmp_path) == [1, 2]


def test_letters_by_what_became_of_their_lines(tmp_path):
    """Stored and rejected lines lose their letter; that of a line which was refused stays."""
    results = {
        b"m v=1": DeliveryResult(1),
        b"m v=2": DeliveryResult(0, [rejected(2)]),
        b"m v=3": DeliveryResult(0, refused="the disk is full"),
    }
    sent = []

    def ingest(inbox):
        while len(sent) < len(results):
            group = inbox.take(5.0)
            assert group is not None
            sent.extend(group.deliveries)
            for delivery in group.deliveries:
                inbox._post(lambda delivery=delivery: delivery.on_done(results[delivery.payload]))

    errors = [rejected(number, payload) for number, payload in enumerate(results, start=1)]
    assert run(tmp_path, errors, ingest) == {"stored": 1, "rejected": 1, "not_taken": 1}
    assert kept(tmp_path) == [3]
    assert {delivery.origin.tags for delivery in sent} == {(("device", "d1"),)}
