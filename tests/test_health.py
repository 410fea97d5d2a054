"""One place for the state: what is degraded, what is held, and the sentence that says so."""

from edge_appliance.health import Health, Phase, ReplayProgress


def running() -> Health:
    health = Health()
    health.enter(Phase.RUNNING)
    return health


def test_healthy_appliance_says_that_it_runs():
    """Without anything to report the sentence is one word."""
    assert running().status_line() == "running"


def test_degraded_reason_stays_until_it_is_restored():
    """Whoever found a condition says when it is over; others keep theirs."""
    health = running()
    health.degrade("a", "disk slow")
    health.degrade("b", "store away")
    health.restore("a")
    health.restore("never seen")
    assert health.degraded == {"b": "store away"}
    assert health.status_line() == "store away"


def test_held_intake_comes_first_and_counts_as_degraded():
    """That nothing is acknowledged is what an operator must read first."""
    health = running()
    health.note("broker", "broker connected")
    health.hold("room", "the buffer is full")
    assert health.held == "the buffer is full"
    assert health.degraded == {"room": "the buffer is full"}
    assert health.status_line() == "not acknowledging: the buffer is full; broker connected"
    health.release("room")
    assert health.held == ""


def test_fact_and_fault_of_one_key_are_told_once():
    """A refused broker is a fault; the fact that it is not connected adds nothing."""
    health = running()
    health.note("broker", "not connected (refused)")
    health.degrade("broker", "broker refuses us: not authorized")
    assert health.status_line() == "broker refuses us: not authorized"


def test_empty_fact_is_taken_back():
    """A fact that is over leaves no trace in the sentence."""
    health = running()
    health.note("broker", "connected")
    health.note("broker", "")
    assert health.status_line() == "running"


def test_replay_is_told_with_percent_rate_and_what_is_left():
    """During replay the sentence is its progress, whatever else there is to say."""
    health = Health()
    health.enter(Phase.REPLAYING)
    health.degrade("a", "damaged")
    health.replayed(ReplayProgress(done_bytes=2**20, total_bytes=4 * 2**20, lines=12_000, seconds=2.0))
    assert health.status_line() == "replaying the log: 25 % of 4.0 MiB, 12,000 lines, 6 s left"
    assert not health.is_ready


def test_replay_of_nothing_is_complete():
    """An empty log is no division by zero."""
    assert ReplayProgress().percent == 100
