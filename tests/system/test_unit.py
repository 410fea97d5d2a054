"""The unit and what goes with it: hardening, credentials, the examples, who may ask."""

import re

import pytest
from machine import Machine
from ports import wait_until

pytestmark = pytest.mark.system

MAX_EXPOSURE = 1.5
EXAMPLES = "/usr/share/doc/edge-appliance/examples"
LOGIN = ("-u", "edge", "-P", "geheim!")


def use_example(machine: Machine, name: str) -> None:
    """Copy a shipped drop-in to where it works, as its text says."""
    machine.run("mkdir", "-p", "/etc/systemd/system/edge-appliance.service.d")
    machine.run("cp", f"{EXAMPLES}/{name}", "/etc/systemd/system/edge-appliance.service.d/")
    machine.run("systemctl", "daemon-reload")


@pytest.mark.essential
def test_exposure(machine: Machine) -> None:
    """Systemd itself rates the running service as well confined, and finds nothing to say about the unit's text."""
    overall = machine.output("systemd-analyze", "security", "--no-pager", "edge-appliance").splitlines()[-1]
    exposure = re.search(r"(\d+\.\d)", overall)
    assert exposure is not None
    assert float(exposure[1]) <= MAX_EXPOSURE
    verified = machine.run("systemd-analyze", "verify", "edge-appliance.service")
    assert (verified.stdout, verified.stderr) == ("", "")


def test_confined_process_still_sees_the_host(machine: Machine) -> None:
    """What is measured of memory and disk works inside the confinement."""
    for name in ("resident_memory_bytes", "buffer_limit_bytes"):
        assert machine.metric(name) > 0, name
    pid = machine.main_pid()
    status = machine.output("cat", f"/proc/{pid}/status")
    assert re.search(r"(?m)^CapBnd:\s0+$", status)
    assert re.search(r"(?m)^NoNewPrivs:\s1$", status)
    assert re.search(r"(?m)^Seccomp:\s2$", status)


def require_login(machine: Machine) -> None:
    """Have the broker take one user with one password only."""
    machine.write(
        "/etc/mosquitto/conf.d/login.conf",
        "listener 1883 127.0.0.1\nallow_anonymous false\npassword_file /etc/mosquitto/users\n",
    )
    machine.run("mosquitto_passwd", "-b", "-c", "/etc/mosquitto/users", LOGIN[1], LOGIN[3])
    machine.run("chown", "mosquitto", "/etc/mosquitto/users")
    machine.write(
        "/etc/edge-appliance/conf.d/login.toml", '[mqtt]\nusername = "edge"\npassword_credential = "mqtt-password"\n'
    )


@pytest.mark.essential
def test_credential(off: Machine) -> None:
    """A password that only root can read reaches the service; it is in no log, status or world-readable place."""
    require_login(off)
    off.write("/etc/edge-appliance/credentials/mqtt-password", f"{LOGIN[3]}\n", 0o600)
    off.boot()
    off.wait_active()
    off.publish("devices/d1/lp", "secret v=1", login=LOGIN)
    wait_until(lambda: off.count("secret") == 1, "it is logged in")
    shown = (
        off.messages()
        + off.output("edge-appliance", "status", "--json")
        + off.output("edge-appliance", "check-config", "--show")
    )
    assert LOGIN[3] not in shown


def test_credential_that_is_named_but_absent(off: Machine) -> None:
    """It is a fault of the configuration, named with its place, and no reason to start again and again."""
    require_login(off)
    off.boot()
    wait_until(lambda: off.show("ActiveState")["ActiveState"] == "failed", "it has given up")
    assert off.show("ExecMainStatus", "NRestarts") == {"ExecMainStatus": "78", "NRestarts": "0"}
    assert "no credential 'mqtt-password'" in off.messages()


def test_port_below_1024(machine: Machine) -> None:
    """With the example's drop-in the service listens on port 80, and still has no other privilege."""
    use_example(machine, "port-below-1024.conf")
    machine.write("/etc/edge-appliance/conf.d/http.toml", '[http]\nlisten = "127.0.0.1:80"\n')
    machine.run("systemctl", "restart", "edge-appliance")
    assert machine.query("SELECT 1 AS one") == [{"one": 1}]
    status = machine.output("cat", f"/proc/{machine.main_pid()}/status")
    assert re.search(r"(?m)^CapEff:\s0*400$", status), "CAP_NET_BIND_SERVICE alone"


def test_other_directory(machine: Machine) -> None:
    """Without the drop-in a data directory elsewhere is refused in one sentence; with it, it is used."""
    machine.run("install", "-d", "-o", "edge-appliance", "-g", "edge-appliance", "-m", "0750", "/srv/edge")
    machine.write("/etc/edge-appliance/conf.d/dir.toml", '[node]\ndata_dir = "/srv/edge"\n')
    machine.run("systemctl", "restart", "edge-appliance", check=False)
    assert "/srv/edge" in machine.messages()
    assert "Traceback" not in machine.messages()
    use_example(machine, "other-directory.conf")
    machine.run("systemctl", "restart", "edge-appliance")
    machine.publish("devices/d1/lp", "elsewhere v=1")
    wait_until(lambda: machine.count("elsewhere") == 1, "the line is there")
    assert list((machine.root / "srv/edge/wal").glob("*.wal"))


@pytest.mark.parametrize("name", ["memory-limit.conf", "without-user-namespaces.conf"])
def test_other_examples(machine: Machine, name: str) -> None:
    """The service starts with the drop-in, and systemd takes every line of it."""
    use_example(machine, name)
    machine.run("systemctl", "restart", "edge-appliance")
    assert machine.is_active()
    assert machine.run("systemd-analyze", "verify", "edge-appliance.service").stderr == ""


def test_sd_card_example(machine: Machine) -> None:
    """The service starts with the settings for cards."""
    machine.run("cp", f"{EXAMPLES}/sd-card.toml", "/etc/edge-appliance/conf.d/")
    machine.run("systemctl", "restart", "edge-appliance")
    shown = machine.output("edge-appliance", "check-config", "--show")
    assert re.search(r"(?m)^wal\.group_delay +200 ms$", shown)


def test_group_may_ask_and_others_may_not(machine: Machine) -> None:
    """A member of the group reads settings and rows; somebody else sees neither."""
    machine.run("useradd", "--create-home", "--groups", "edge-appliance", "member")
    machine.run("useradd", "--create-home", "stranger")
    machine.run("su", "member", "-c", "edge-appliance query 'SELECT 1' && ls /var/lib/edge-appliance/wal")
    refused = machine.run(
        "su", "stranger", "-c", "edge-appliance check-config; ls /var/lib/edge-appliance", check=False
    )
    assert "Permission denied" in refused.stderr
    assert "Traceback" not in refused.stderr
    secret = machine.run("su", "member", "-c", "ls /etc/edge-appliance/credentials", check=False)
    assert secret.returncode != 0
