"""journal: priorities, limits on storms, fields and events."""

import io
import logging
import os
import socket

import pytest

from edge_appliance import journal as journal_module
from edge_appliance.journal import EVENTS, JournalHandler, JournalSocket, message_id


class Clock:
    """Time that stands still until told."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        """Return the time."""
        return self.now_s


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
    logger.addHandler(journal_module.journal_handler({}))
    logger.warning("careful")
    assert stream.getvalue().endswith(" WARNING  cli.run: careful\n")


def test_journal_is_recognised_by_device_and_inode(tmp_path, monkeypatch):
    """Prefixes are for the very stream that systemd connected: stderr redirected to a file gets none."""
    with (tmp_path / "a").open("w") as journal, (tmp_path / "b").open("w") as other:
        stat = os.fstat(journal.fileno())
        environ = {"JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}
        monkeypatch.setattr("sys.stderr", journal)
        assert journal_module._is_journal(environ["JOURNAL_STREAM"])
        monkeypatch.setattr("sys.stderr", other)
        assert not journal_module._is_journal(environ["JOURNAL_STREAM"])


def test_suppressed_lines_are_reported_to_the_metrics(monkeypatch):
    """Whoever counts is told by every journal handler of the root logger."""
    handler = JournalHandler(is_journal=True)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    journal_module.report_suppressed(callback := lambda: None)
    assert handler.on_suppressed is callback


# Fields


def fields_of(datagram):
    """The fields of one entry in the journal's own form."""
    fields = {}
    while datagram:
        name, _, rest = datagram.partition(b"\n")
        size = int.from_bytes(rest[:8], "little")
        fields[name.decode()] = rest[8 : 8 + size].decode()
        datagram = rest[8 + size + 1 :]
    return fields


@pytest.fixture
def native(tmp_path, monkeypatch):
    """A logger whose handler sends to a socket, the socket, and what lands on stderr instead."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "journal"))
        receiver.setblocking(False)
        handler = JournalHandler(is_journal=True, native=JournalSocket(str(tmp_path / "journal")))
        logger = logging.Logger("edge_appliance.mqtt_source")
        logger.addHandler(handler)
        yield logger, receiver, stream
        handler.close()


def test_fields(native):
    """An entry has its words, priority, origin, and for an event its name and id."""
    logger, receiver, stream = native
    logger.warning("broker %s lost", "b:1883", extra={"event": "broker_lost"})
    assert fields_of(receiver.recv(65536)) == {
        "MESSAGE": "mqtt_source: broker b:1883 lost",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "edge-appliance",
        "EA_LOGGER": "mqtt_source",
        "EA_EVENT": "broker_lost",
        "MESSAGE_ID": message_id("broker_lost"),
    }
    assert stream.getvalue() == ""


def test_text_from_outside_forges_no_field(native):
    """Line ends in a text stay in the message."""
    logger, receiver, _ = native
    logger.warning("topic %s", "x\nPRIORITY=0\n")
    fields = fields_of(receiver.recv(65536))
    assert fields["MESSAGE"] == "mqtt_source: topic x\nPRIORITY=0\n"
    assert fields["PRIORITY"] == "4"


def test_withheld_lines_are_a_field(native):
    """How many lines were withheld is a number of its own, too."""
    logger, receiver, _ = native
    handler = logger.handlers[0]
    now_s = [0.0]
    handler._clock = lambda: now_s[0]
    for _ in range(handler.BURST + 3):
        logger.warning("bad")
    for _ in range(handler.BURST):
        receiver.recv(65536)
    now_s[0] += 2 * handler.REFILL_S
    logger.warning("bad")
    assert fields_of(receiver.recv(65536))["EA_WITHHELD"] == "3"


def test_journal_that_is_away_or_stalls_stops_nobody(native):
    """What the socket does not take at once goes to stderr; nothing waits, nothing is raised."""
    logger, receiver, stream = native
    for number in range(2_000):  # far more than the socket holds
        logger.critical("hung %d", number)
    assert "<2>mqtt_source: hung 1999" in stream.getvalue()
    receiver.close()
    logger.warning("alone")
    assert stream.getvalue().endswith("<4>mqtt_source: alone\n")


def test_long_message_is_cut(native):
    """A message that is larger than a datagram may be arrives, shortened."""
    logger, receiver, _ = native
    logger.warning("x" * 1_000_000)
    assert len(fields_of(receiver.recv(1 << 20))["MESSAGE"]) == journal_module.MAX_MESSAGE


def test_ids_of_events_never_change():
    """Scripts and alerts name them; a new release must not break these."""
    assert message_id("ready") == "3e7ae46e83d25b6881ad46b2d8ce2eb2"
    assert len({message_id(event) for event in EVENTS}) == len(EVENTS)
