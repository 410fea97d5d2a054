"""systemd: notifications, stations, the watchdog, journal lines."""

import logging
import os
import socket
import threading

import pytest

from edge_appliance.systemd import Notifier, Station, Watchdog


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """A socket where the service manager's would be."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield listener


@pytest.fixture
def notifier(manager):
    """A notifier connected to it."""
    notifier = Notifier()
    yield notifier
    notifier.close()


class Clock:
    """Time that stands still until told."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        """Return the time."""
        return self.now_s


# Notifications


@pytest.mark.parametrize(
    ("send", "message"),
    [
        (lambda n: n.ready("12 routes"), "READY=1\nSTATUS=12 routes"),
        (lambda n: n.status("replaying: 5 %"), "STATUS=replaying: 5 %"),
        (lambda n: n.extend_timeout(2.5), "EXTEND_TIMEOUT_USEC=2500000"),
        (lambda n: n.stopping(), "STOPPING=1\nSTATUS=stopping"),
        (lambda n: n.watchdog(), "WATCHDOG=1"),
        (lambda n: n.status("Straße → Werk"), "STATUS=Straße → Werk"),
        (lambda n: n.status("a\nREADY=1\n b"), "STATUS=a READY=1 b"),
    ],
)
def test_notification(manager, notifier, send, message):
    """Each notification arrives as systemd reads it: UTF-8, and no text can smuggle in a second assignment."""
    send(notifier)
    assert manager.recv(4096).decode() == message


def test_notifications_without_systemd(monkeypatch):
    """Without the socket everything is a no-op."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = Notifier()
    notifier.ready()
    notifier.watchdog()
    notifier.close()


def test_notifications_after_the_manager_is_gone(manager, notifier):
    """A vanished socket harms nobody."""
    manager.close()
    notifier.status("x")
    notifier.close()
    notifier.status("y")


# Stations


def test_station_goes_stale_and_recovers():
    """A station is fresh for its limit after each beat."""
    clock = Clock()
    station = Station("ingest", 10, clock)
    clock.now_s += 10
    assert station.is_fresh
    clock.now_s += 1
    assert (station.is_fresh, station.overdue_s) == (False, 1)
    station.beat()
    assert (station.is_fresh, station.overdue_s) == (True, 0)


def test_station_waiting_is_alive():
    """Who waits for work is alive however long; afterwards the limit counts again."""
    clock = Clock()
    station = Station("ingest", 10, clock)
    with station.waiting():
        clock.now_s += 10_000
        assert station.is_fresh
    assert station.is_fresh
    clock.now_s += 11
    assert not station.is_fresh


def test_station_long_step():
    """A step that is known to be long has a limit of its own, also when it fails."""
    clock = Clock()
    station = Station("ingest", 10, clock)
    with pytest.raises(OSError, match="disk"), station.within(120, "commit"):
        clock.now_s += 119
        assert station.is_fresh
        clock.now_s += 2
        assert not station.is_fresh
        raise OSError("disk")
    clock.now_s += 11
    assert not station.is_fresh


# Watchdog

ASKED = {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}


@pytest.mark.parametrize(
    ("environ", "period_s"),
    [
        ({}, 0),
        ({"WATCHDOG_USEC": "60000000"}, 20),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 20),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0),
        ({"WATCHDOG_USEC": "soon"}, 0),
    ],
)
def test_watchdog_period(notifier, environ, period_s):
    """Three pings fit the interval systemd asked this very process for."""
    assert Watchdog(notifier, environ=environ).period_s == period_s


def test_watchdog_pings_while_stations_are_fresh(manager, notifier):
    """With every station fresh pings keep coming."""
    watchdog = Watchdog(notifier, [Station("loop", 60)], environ=ASKED)
    watchdog.start()
    try:
        assert [manager.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
    finally:
        watchdog.stop()


def test_watchdog_falls_silent_on_a_stale_station(manager, notifier, caplog):
    """A stale station gets all stacks dumped, one critical line with its name, and no further ping, ever."""
    clock, dumped = Clock(), threading.Event()
    fresh, hung = Station("loop", 60, clock), Station("ingest", 5, clock)
    watchdog = Watchdog(notifier, [fresh], environ=ASKED, dump=dumped.set)
    watchdog.watch(hung)
    watchdog.start()
    try:
        assert manager.recv(100) == b"WATCHDOG=1"
        clock.now_s += 6
        assert dumped.wait(5)
    finally:
        watchdog.stop()  # waits for the thread, which has ended by itself
    hung.beat()
    manager.setblocking(False)
    while True:
        try:
            assert manager.recv(100) == b"WATCHDOG=1"  # sent before the station went stale
        except BlockingIOError:
            break
    (record,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "ingest (limit 5 s, overdue 1.0 s)" in record.getMessage()
    assert "loop" not in record.getMessage()


def test_watchdog_names_the_step_that_hangs(notifier, caplog):
    """A long step is told by its name and with its own limit, and only while it lasts."""
    clock = Clock()
    station = Station("ingest", 60, clock)
    watchdog = Watchdog(notifier, [station], dump=lambda: None)
    with station.within(120, "commit"):
        clock.now_s += 119
        assert watchdog.ping()
        clock.now_s += 2
        assert not watchdog.ping()
    clock.now_s += 61
    assert not watchdog.ping()
    during, after = [record.getMessage() for record in caplog.records]
    assert "no progress: ingest, commit (limit 120 s, overdue 1.0 s);" in during
    assert "no progress: ingest (limit 60 s, overdue 1.0 s);" in after


def test_watchdog_counts_from_its_start(manager, notifier):
    """A station made before a long replay is not stale when the watchdog starts, and one at rest stays at rest."""
    clock = Clock()
    waiting, resting = Station("ingest", 5, clock), Station("worker", 5, clock)
    resting.rest()
    clock.now_s += 1000
    watchdog = Watchdog(notifier, [waiting, resting], environ=ASKED)
    watchdog.start()
    try:
        assert manager.recv(100) == b"WATCHDOG=1"
    finally:
        watchdog.stop()
    clock.now_s += 6
    assert not waiting.is_fresh
    assert resting.is_fresh


def test_watchdog_dump_shows_all_stacks(notifier, capfd):
    """The dump names the functions that threads hang in."""
    clock = Clock()
    watchdog = Watchdog(notifier, [Station("x", 1, clock)], environ=ASKED)
    clock.now_s += 2
    assert not watchdog.ping()
    assert "test_watchdog_dump_shows_all_stacks" in capfd.readouterr().err


def test_watchdog_not_asked_for(notifier, monkeypatch):
    """When systemd asked for no pings there is no thread."""
    watchdog = Watchdog(notifier, environ={})
    watchdog.start()
    assert "watchdog" not in [thread.name for thread in threading.enumerate()]
    watchdog.stop()
