"""`edge-appliance doctor`: verdicts, words and exit codes; the broker is a real one."""

import json
import re
import socket

import pytest
from broker import Mosquitto
from ports import free_port

from edge_appliance.cli import doctor_broker, doctor_host
from edge_appliance.cli import main as cli


@pytest.fixture
def diagnose(tmp_path, capsys, monkeypatch):
    """Run it on a configuration; returns the exit code and the findings by check."""
    monkeypatch.setattr(doctor_broker, "MOSQUITTO", tmp_path / "no-mosquitto")

    def _diagnose(text="", http=None, mqtt_port=None):
        (tmp_path / "store").mkdir(exist_ok=True)
        config = tmp_path / "edge.toml"
        config.write_text(
            f'[node]\nid = "test"\ndata_dir = "{tmp_path}"\n[http]\nlisten = "127.0.0.1:{http or free_port()}"\n'
            f'[wal]\nmin_free = "1MiB"\n[mqtt]\nport = {mqtt_port or free_port()}\n{text}'
        )
        code = cli.main(["doctor", "--json", "--config", str(config)])
        return code, {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}

    return _diagnose


def test_faults_of_the_configuration_end_it(diagnose):
    """With a faulty configuration nothing else is tried, and every fault is a finding."""
    code, found = diagnose("porrt = 1")
    assert (code, list(found)) == (1, ["configuration"])
    assert "did you mean 'port'" in found["configuration"]["text"]


def test_absent_broker_fails_and_the_rest_goes_on(diagnose):
    """Everything is tried, whatever failed before; each fault says what to do."""
    code, found = diagnose()
    assert code == 1
    assert (found["broker"]["verdict"], found["service"]["verdict"]) == ("fail", "warn")
    assert {"disk sync", "disk space", "memory", "clock", "store"} <= found.keys()
    assert all(finding["fix"] for finding in found.values() if finding["verdict"] != "pass")
    assert found["store"]["verdict"] == "pass"


def test_port_of_somebody_else(diagnose):
    """A port that another program holds is named."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        _, found = diagnose(http=other.getsockname()[1])
    assert found["service"]["verdict"] == "fail"


@pytest.mark.integration
def test_broker_that_takes_us(diagnose, tmp_path):
    """Login and subscriptions are tried for real, without a will, a session or a retained word left behind."""
    with Mosquitto(tmp_path / "broker", settings=("log_type all",)) as broker:
        code, found = diagnose(mqtt_port=broker.port)
        log = (tmp_path / "broker/mosquitto.log").read_text()
    assert (code, found["broker"]["verdict"]) == (0, "pass")
    assert re.search(r"Received DISCONNECT from edge-appliance-test-doctor", log)
    assert "Sending PUBLISH" not in log


@pytest.mark.integration
def test_broker_that_refuses_the_login(diagnose, tmp_path):
    """A wrong password is the broker's refusal, not a connection that failed."""
    (tmp_path / "password").write_text("wrong")
    (tmp_path / "users").write_text("")
    settings = ("allow_anonymous false", f"password_file {tmp_path}/users")
    with Mosquitto(tmp_path / "broker", settings=settings) as broker:
        text = f'username = "edge"\npassword_file = "{tmp_path}/password"\n'
        code, found = diagnose(text, mqtt_port=broker.port)
    assert code == 1
    assert re.search(r"refuse|not authori", found["broker"]["text"], re.IGNORECASE)
    assert "password" in found["broker"]["fix"]


def test_token_that_others_may_read(tmp_path):
    """A token file open to everybody is a fault with the commands that close it."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "token").chmod(0o644)
    settings = type("S", (), {"http": type("H", (), {"token_file": tmp_path / "token"})})
    (finding,) = doctor_host.token(settings)
    assert (finding.verdict, finding.fix.startswith("chmod 0640")) == ("fail", True)


def test_queue_of_mosquitto(tmp_path, monkeypatch):
    """Its default, which drops messages while we are away, is a warning; a stated limit is not."""
    monkeypatch.setattr(doctor_broker, "MOSQUITTO", tmp_path)
    settings = type("S", (), {"mqtt": type("M", (), {"host": "127.0.0.1"})})
    (tmp_path / "mosquitto.conf").write_text("listener 1883\n# max_queued_messages 5\n")
    assert [finding.verdict for finding in doctor_broker.queue(settings)] == ["warn"]
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/queue.conf").write_text("max_queued_messages 0\n")
    assert [finding.verdict for finding in doctor_broker.queue(settings)] == ["pass"]


def test_people_see_a_line_and_what_to_do(tmp_path, capsys, monkeypatch):
    """Without a terminal there is no colour; a fix stands below its finding."""
    monkeypatch.setattr(doctor_broker, "MOSQUITTO", tmp_path)
    (tmp_path / "edge.toml").write_text("[mqtt]\nporrt = 1\n")
    assert cli.main(["doctor", "--config", str(tmp_path / "edge.toml")]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("fail  configuration: ")
    assert second.startswith("      → correct this line")
