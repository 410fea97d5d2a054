"""The service under systemd: from boot to Parquet, and what it does when something fails."""

import os

import pytest
from machine import Machine, wait
from ports import wait_until

pytestmark = pytest.mark.system

STATE = "var/lib/edge-appliance"
T0 = 1_790_000_000
PERSIST_SOON = '[segment]\nmax_age = "1s"\n'
IDLE_S = 20.0
MAX_IDLE_CPU = 0.005
MAX_IDLE_BYTES = 130 << 20


def publish_rows(machine: Machine, table: str, count: int) -> None:
    """Publish rows of one table and wait until all are visible."""
    machine.publish("devices/d1/lp", *(f"{table} n={n}i {T0 + n}" for n in range(count)))
    wait_until(lambda: machine.count(table) == count, f"{count} rows of {table} are visible")


@pytest.mark.essential
def test_from_boot_to_parquet(off: Machine) -> None:
    """After a boot with a broker on the same machine a published line is in SQL, then in a Parquet file."""
    off.write("/etc/edge-appliance/conf.d/soon.toml", PERSIST_SOON)
    off.boot()
    off.wait_active()
    off.publish("devices/press-04/lp", "press temp=81.5,strokes=1204i")
    wait_until(lambda: off.count("press") == 1, "the line is in SQL")
    (row,) = off.query("SELECT device, temp, strokes FROM press")
    assert row == {"device": "press-04", "temp": 81.5, "strokes": 1204}
    store = off.root / STATE / "store/edge/press"
    wait_until(lambda: list(store.rglob("*.parquet")), "the line is in a Parquet file")
    wait_until(lambda: off.metric("segments") >= 1, "the service goes on")
    assert off.count("press") == 1


@pytest.mark.essential
def test_boot_without_broker_or_network(off: Machine) -> None:
    """Without a broker it is ready and says what is missing; it connects when the broker comes."""
    off.run("systemctl", "disable", "mosquitto")
    off.boot()
    off.wait_active()
    wait_until(lambda: "broker" in off.show("StatusText")["StatusText"], "its status names the broker")
    off.run("systemctl", "start", "mosquitto")
    wait_until(lambda: off.metric("broker_connected") == 1, "it has connected")
    publish_rows(off, "late", 10)
    assert off.show("NRestarts")["NRestarts"] == "0"


def test_state_belongs_to_the_service_and_its_group(machine: Machine) -> None:
    """All of the state is the service's; the group reads, others see nothing; no file of root's is in it."""
    machine.write("/etc/edge-appliance/conf.d/soon.toml", PERSIST_SOON)
    machine.run("systemctl", "restart", "edge-appliance")
    publish_rows(machine, "mine", 5)
    wait_until(lambda: list((machine.root / STATE / "store").rglob("*.parquet")), "there is a Parquet file")
    for command in (["status"], ["rejects", "list"], ["check-config"], ["wal", "inspect", f"/{STATE}"]):
        machine.run("edge-appliance", *command)
    found = machine.output("find", f"/{STATE}", "-printf", "%u:%g %m %y\n").splitlines()
    assert {line.split()[0] for line in found} == {"edge-appliance:edge-appliance"}
    for mode, kind in {tuple(line.split()[1:]) for line in found}:
        assert int(mode, 8) & 0o007 == 0, (mode, kind)
        assert int(mode, 8) & 0o020 == 0, (mode, kind)


@pytest.mark.essential
def test_kill_loses_and_doubles_nothing(machine: Machine) -> None:
    """SIGKILL in the middle of a stream: systemd starts it again, and every line the broker took is there once."""
    # By default Mosquitto drops what exceeds 1,000 messages for a subscriber that is away.
    machine.write("/etc/mosquitto/conf.d/queue.conf", "max_queued_messages 0\n")
    machine.run("systemctl", "restart", "mosquitto")
    wait_until(lambda: machine.metric("broker_connected") == 1, "it has connected again")
    machine.drop_in("soon", "RestartSec=100ms")
    publisher = "for n in $(seq 4000); do echo killed n=${n}i $((1790000000 + n)); done"
    send = machine.start("sh", "-c", f"{publisher} | mosquitto_pub -q 1 -l -h 127.0.0.1 -t devices/d1/lp")
    wait_until(lambda: machine.metric("lines_total") > 100, "lines arrive")
    before = machine.main_pid()
    machine.kill("KILL")
    assert send.wait(60) == 0
    wait_until(lambda: machine.main_pid() not in (0, before), "systemd has started it again")
    machine.wait_active()
    wait_until(lambda: machine.count("killed") == 4000, "all lines are there")
    assert machine.query("SELECT count(DISTINCT n) AS n FROM killed") == [{"n": 4000}]
    assert machine.show("NRestarts")["NRestarts"] == "1"


def test_power_cut_of_the_whole_machine(machine: Machine) -> None:
    """After a boot that follows the death of everything, all lines are there."""
    publish_rows(machine, "cut", 300)
    machine.power_cut()
    machine.boot()
    machine.wait_active()
    assert machine.count("cut") == 300


@pytest.mark.essential
def test_watchdog_restarts_a_process_that_hangs(machine: Machine) -> None:
    """A process that stands still is aborted after WatchdogSec, and the next one has all rows."""
    machine.drop_in("watchdog", "WatchdogSec=2", "RestartSec=100ms")
    machine.run("systemctl", "restart", "edge-appliance")
    publish_rows(machine, "hung", 20)
    wait(4)
    assert machine.show("NRestarts")["NRestarts"] == "0", "a healthy one is left alone"
    before = machine.main_pid()
    machine.kill("STOP")
    wait_until(lambda: machine.main_pid() not in (0, before), "systemd has replaced it", 20)
    machine.wait_active()
    assert machine.count("hung") == 20
    assert "Watchdog timeout" in machine.messages()


def slow_down(machine: Machine, pid: int) -> None:
    """Let a process run a tenth of the time only, as on a slow machine, until the service is ready."""
    step = f"kill -STOP {pid} && sleep 0.18 && kill -CONT {pid} && sleep 0.02"
    machine.start("sh", "-c", f"until systemctl is-active --quiet edge-appliance; do {step} || exit; done")


def test_replay_longer_than_the_start_timeout(machine: Machine) -> None:
    """A replay that makes progress is not cut off by TimeoutStartSec, and shows how far it is."""
    fill = (
        "import urllib.request\n"
        "for b in range(40):\n"
        "    body = '\\n'.join(f'long,t=t{i % 50} v=1.5,n={i}i {b * 20000 + i}' for i in range(20000)).encode()\n"
        "    url = 'http://127.0.0.1:8181/api/v2/write?bucket=edge&precision=s'\n"
        "    urllib.request.urlopen(urllib.request.Request(url, data=body, method='POST')).read()\n"
    )
    machine.write(
        "/etc/edge-appliance/conf.d/big.toml",
        '[segment]\nmax_bytes = "1GiB"\n[memory]\nbuffer_limit="55%"\n[wal]\nmax_bytes="8GiB"\n',
    )
    machine.drop_in("short", "TimeoutStartSec=2", "RestartSec=100ms")
    machine.run("systemctl", "restart", "edge-appliance")
    machine.run("python3", "-c", fill, timeout_s=120)
    before = machine.main_pid()
    machine.kill("KILL")
    wait_until(lambda: machine.main_pid() not in (0, before), "systemd has started it again")
    slow_down(machine, machine.main_pid())
    wait_until(lambda: "replaying the log" in machine.show("StatusText")["StatusText"], "its status shows the replay")
    machine.wait_active(60)
    assert machine.count("long") == 800_000
    start = machine.show("NRestarts", "ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
    took_us = int(start["ActiveEnterTimestampMonotonic"]) - int(start["ExecMainStartTimestampMonotonic"])
    assert start["NRestarts"] == "1"
    assert took_us > 2_000_000, "the replay was shorter than the timeout, so this showed nothing"


@pytest.mark.essential
def test_reload(machine: Machine) -> None:
    """`systemctl reload` returns when the change has taken effect, and keeps the process and its link to the broker."""
    before = machine.main_pid()
    machine.write("/etc/edge-appliance/conf.d/route.toml", '[[mqtt.route]]\ntopic = "plant/{device}"\n')
    machine.run("systemctl", "reload", "edge-appliance")
    machine.publish("plant/d1", "reloaded v=1")
    wait_until(lambda: machine.count("reloaded") == 1, "the new route takes it")
    assert (machine.main_pid(), machine.metric("broker_connects_total")) == (before, 1)
    assert machine.show("ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}


def test_reload_of_faults(machine: Machine) -> None:
    """A faulty configuration fails the reload with the fault in the journal, and the service goes on as it was."""
    before = machine.main_pid()
    machine.write("/etc/edge-appliance/conf.d/bad.toml", "[mqtt]\nporrt = 1\n")
    assert machine.run("systemctl", "reload", "edge-appliance", check=False).returncode != 0
    assert "conf.d/bad.toml:2: mqtt.porrt: unknown key" in machine.messages()
    assert (machine.main_pid(), machine.is_active()) == (before, True)
    machine.run("rm", "/etc/edge-appliance/conf.d/bad.toml")  # our own commands would name it, too
    publish_rows(machine, "unharmed", 3)


def test_idle_costs_little(machine: Machine) -> None:
    """With nothing to do it takes next to no CPU, stays within its memory, and says nothing."""

    def cpu_s() -> float:
        fields = machine.output("cat", f"/proc/{machine.main_pid()}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    wait_until(lambda: machine.metric("broker_connected") == 1, "it has connected")
    wait(2)
    lines, before_s = len(machine.journal()), cpu_s()
    wait(IDLE_S)
    used_s = cpu_s() - before_s
    assert len(machine.journal()) == lines
    assert used_s / IDLE_S <= MAX_IDLE_CPU
    assert machine.metric("resident_memory_bytes") <= MAX_IDLE_BYTES


def test_stop_is_quick_and_the_next_start_has_everything(machine: Machine) -> None:
    """`systemctl stop` ends within seconds without a fault, and the rows are there after the next start."""
    publish_rows(machine, "stopped", 1000)
    machine.run("systemctl", "stop", "edge-appliance", timeout_s=5)
    assert machine.show("Result", "ExecMainStatus") == {"Result": "success", "ExecMainStatus": "0"}
    machine.run("systemctl", "start", "edge-appliance")
    assert machine.count("stopped") == 1000


def test_journald_restart(machine: Machine) -> None:
    """A restart of the journal neither ends nor restarts the service, and what it says later arrives."""
    before = machine.main_pid()
    machine.run("systemctl", "restart", "systemd-journald")
    machine.run("systemctl", "stop", "mosquitto")
    wait_until(lambda: machine.metric("broker_connected") == 0, "it has noticed that the broker is gone")
    wait_until(lambda: "broker" in machine.messages().splitlines()[-1], "the journal has its line")
    assert machine.main_pid() == before


def test_journal_has_fields(machine: Machine) -> None:
    """Entries carry their priority, where they are from, and the ids of events."""
    machine.run("systemctl", "stop", "mosquitto")
    wait_until(lambda: machine.journal("EA_EVENT=broker_lost"), "the loss of the broker is an event")
    (ready,) = machine.journal("_SYSTEMD_UNIT=edge-appliance.service", "EA_EVENT=ready")
    assert (ready["PRIORITY"], ready["EA_LOGGER"], ready["SYSLOG_IDENTIFIER"]) == ("6", "appliance", "edge-appliance")
    assert machine.messages(f"MESSAGE_ID={ready['MESSAGE_ID']}") == ready["MESSAGE"]
    assert machine.journal("EA_EVENT=broker_lost")[0]["PRIORITY"] == "4"


@pytest.mark.essential
def test_nothing_is_imported_after_ready(machine: Machine) -> None:
    """Everything is loaded before READY: with its files gone it goes on, as it must while an upgrade replaces them."""
    machine.write("/etc/edge-appliance/conf.d/soon.toml", PERSIST_SOON)
    machine.run("systemctl", "restart", "edge-appliance")
    machine.run("rm", "-r", "/usr/lib/edge-appliance", "/usr/lib/python3")
    ask = (
        "import sys, urllib.request, urllib.parse\n"
        "for kind in ('json', 'csv', 'jsonl', 'parquet'):\n"
        "    query = urllib.parse.urlencode({'db': 'edge', 'format': kind, 'q': sys.argv[1]})\n"
        "    print(urllib.request.urlopen('http://127.0.0.1:8181/api/v3/query_sql?' + query).read()[:200])\n"
    )
    machine.publish("devices/d1/lp", "moved v=1", "moved v=2 oops", 'moved v=3,s="x"')
    store = machine.root / STATE / "store/edge/moved"
    wait_until(lambda: list(store.rglob("*.parquet")), "rows become Parquet")
    machine.run("python3", "-c", ask, "SELECT device, count(*), max(v), min(s) FROM moved GROUP BY device ORDER BY 1")
    machine.run("systemctl", "stop", "edge-appliance")
    assert machine.show("Result")["Result"] == "success"
    assert "Traceback" not in machine.messages()


@pytest.mark.essential
def test_doctor_run_by_root_leaves_nothing_behind(machine: Machine) -> None:
    """On a sound system nothing fails, and no file of root's is in the state afterwards."""
    publish_rows(machine, "sound", 3)
    done = machine.run("edge-appliance", "doctor")
    assert "pass  service: answers on 127.0.0.1:8181" in done.stdout
    assert "pass  broker: 127.0.0.1:1883 takes the login" in done.stdout
    assert "pass  store: " in done.stdout
    assert machine.output("find", f"/{STATE}", "!", "-user", "edge-appliance") == ""


def test_missing_directories_are_made_again(machine: Machine) -> None:
    """State and runtime directories that are gone are no reason not to start."""
    machine.run("systemctl", "stop", "edge-appliance")
    machine.run("rm", "-r", f"/{STATE}")
    machine.run("systemctl", "start", "edge-appliance")
    publish_rows(machine, "anew", 3)
