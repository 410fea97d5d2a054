"""systemd: notifications, stations, the watchdog, journal lines."""

import io
import logging
import os
import socket
import threading

import pytest

from edge_appliance import systemd
from edge_appliance.systemd import JournalHandler, Notifier, Station, Watchdog


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
    with pytest.raises(OSError, match="disk"), station.within(120):
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


# Journal


@pytest.fixture
def journal(monkeypatch):
    """A logger that writes journal lines into a buffer, its clock, and its handler."""
    stream, clock = io.StringIO(), Clock()
    monkeypatch.setattr("sys.stderr", stream)
    handler = JournalHandler(is_journal=True, clock=clock)
    logger = logging.Logger("edge_appliance.mqtt", logging.DEBUG)
    logger.addHandler(handler)
    return logger, stream, clock, handler


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.ERROR, 3), (logging.CRITICAL, 2)],
)
def test_journal_priority(journal, level, priority):
    """Each level has its syslog priority, and the logger's short name leads."""
    logger, stream, _, _ = journal
    logger.log(level, "connected to %s", "broker")
    assert stream.getvalue() == f"<{priority}>mqtt: connected to broker\n"


def test_journal_prefixes_every_line(journal):
    """Tracebacks keep their priority, and text from outside cannot pass for a line of another one."""
    logger, stream, _, _ = journal
    try:
        int("x\n<0>forged".replace("\n", "\u2028"))
    except ValueError:
        logger.exception("bad")
    lines = stream.getvalue().splitlines()
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


def test_journal_storm_is_bounded(journal):
    """A thousand lines a second of one template for a minute are at most 10 lines, and the count is exact."""
    logger, stream, clock, handler = journal
    counted = []
    handler.on_suppressed = lambda: counted.append(1)
    for number in range(60_000):
        clock.now_s += 0.001
        logger.warning("bad message %d", number)
    written = stream.getvalue().splitlines()
    assert len(written) <= 10
    assert len(written) + handler.suppressed == 60_000
    assert len(counted) == handler.suppressed


def test_journal_says_what_it_withheld(journal):
    """The first line after a storm says how many are missing."""
    logger, stream, clock, handler = journal
    for _ in range(handler.BURST + 5):
        logger.warning("bad %s", "x")
    clock.now_s += handler.REFILL_S
    logger.warning("bad %s", "y")
    assert stream.getvalue().splitlines()[-1] == "<4>mqtt: bad y (5 similar lines withheld before)"


def test_journal_lasting_fault_is_a_line_a_minute(journal):
    """A fault that lasts an hour costs the burst and then one line a minute."""
    logger, stream, clock, handler = journal
    for _ in range(3600):
        clock.now_s += 1
        logger.error("store does not answer")
    assert len(stream.getvalue().splitlines()) <= handler.BURST + 60


def test_journal_templates_do_not_share_a_limit(journal):
    """A storm of one message hides no other one, and critical and debug lines are never withheld."""
    logger, stream, _, _ = journal
    for number in range(100):
        logger.warning("storm")
        logger.critical("hung")
        logger.debug("detail")
        if number == 99:
            logger.warning("other")
    text = stream.getvalue()
    assert (text.count("hung"), text.count("detail"), text.count("other")) == (100, 100, 1)
    assert text.count("storm") == JournalHandler.BURST


def test_journal_table_of_templates_is_bounded(journal):
    """A caller that formats its own text does not grow the process."""
    logger, _, _, handler = journal
    for number in range(handler.MAX_TEMPLATES + 10):
        logger.warning(f"own text {number}")
    assert len(handler._buckets) <= handler.MAX_TEMPLATES


def test_plain_lines_outside_the_journal(monkeypatch):
    """On a terminal or in a file a line has time and level, and no priority."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    logger = logging.Logger("edge_appliance.cli.run")
    logger.addHandler(systemd.journal_handler({}))
    logger.warning("careful")
    assert stream.getvalue().endswith(" WARNING  cli.run: careful\n")


def test_journal_is_recognised_by_device_and_inode(tmp_path, monkeypatch):
    """Prefixes are for the very stream that systemd connected: stderr redirected to a file gets none."""
    with (tmp_path / "a").open("w") as journal, (tmp_path / "b").open("w") as other:
        stat = os.fstat(journal.fileno())
        environ = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
        monkeypatch.setattr("sys.stderr", journal)
        assert systemd._is_journal(environ["JOURNAL_STREAM"])
        monkeypatch.setattr("sys.stderr", other)
        assert not systemd._is_journal(environ["JOURNAL_STREAM"])


def test_suppressed_lines_are_reported_to_the_metrics(monkeypatch):
    """Whoever counts is told by every journal handler of the root logger."""
    handler = JournalHandler(is_journal=True)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    systemd.report_suppressed(callback := lambda: None)
    assert handler.on_suppressed is callback
