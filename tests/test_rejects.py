"""Rejected lines: counted, kept, synced, and never in the way of a good one."""

import time
from dataclasses import replace

import pytest
from core_harness import ARRIVAL_NS, ORIGIN

from edge_appliance import durable
from edge_appliance.core.delivery import Delivery, DeliveryResult, LineError, Reason
from edge_appliance.dead_letters import DeadLetters
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics
from edge_appliance.rejects import Rejects

RESULT = DeliveryResult(0, (LineError(1, 1, Reason.NUL_BYTE, "a NUL byte", b"x"),))


@pytest.fixture
def health():
    return Health()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def rejects(tmp_path, health, metrics):
    letters = DeadLetters(tmp_path, 2**20, metrics)
    yield Rejects(letters, health, metrics)
    letters.close()


def test_letters_behind_a_cut_are_synced_too(rejects, monkeypatch):
    """A sync at a cut does not end the one a second that later letters get."""
    synced = []
    sync_file = durable.sync_file
    monkeypatch.setattr(durable, "sync_file", lambda path: (synced.append(path), sync_file(path)))
    start_s = time.monotonic()
    for n, sync in enumerate([rejects.sync, rejects.sync_if_due, rejects.sync, rejects.sync_if_due], start=1):
        monkeypatch.setattr("edge_appliance.rejects.time.monotonic", lambda n=n: start_s + 10 * n)
        rejects.keep([Delivery(ORIGIN, b"x", ARRIVAL_NS)], [RESULT])
        sync()
        assert len(synced) == n


def test_letter_that_cannot_be_written_as_text_is_counted(rejects, health, metrics):
    """A topic that is no valid text costs its letters, and nobody's rows."""
    origin = replace(ORIGIN, label="\udcff")
    rejects.keep([Delivery(origin, b"x", ARRIVAL_NS)], [RESULT])
    assert metrics.dead_letters_dropped.value() == 1
    assert "dead_letters" in health.degraded
    rejects.keep([Delivery(ORIGIN, b"x", ARRIVAL_NS)], [RESULT])
    assert health.degraded == {}
