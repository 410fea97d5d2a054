"""cli.check_config: faults, notices, values in effect."""

import json

from edge_appliance.cli import main as cli


def test_sound_configuration(tmp_path, capsys):
    """A sound configuration is one line with the files that were read."""
    path = tmp_path / "edge.toml"
    path.write_text("[mqtt]\nport = 8883\n")
    assert cli.main(["check-config", "--config", str(path)]) == 0
    assert capsys.readouterr().out == f"ok: {path}\n"


def test_all_faults(tmp_path, capsys):
    """All faults are printed, one a line, and the exit code is 78."""
    path = tmp_path / "edge.toml"
    path.write_text("[mqtt]\nport = 0\nhots = 'x'\n")
    assert cli.main(["check-config", "--config", str(path)]) == 78
    output = capsys.readouterr()
    assert output.out == ""
    first, second = output.err.splitlines()
    assert first.startswith(f"{path}:2: mqtt.port: ")
    assert second.startswith(f"{path}:3: mqtt.hots: ")


def test_missing_file(tmp_path, capsys):
    """A named file that is missing is one line and 78."""
    assert cli.main(["check-config", "--config", str(tmp_path / "no.toml")]) == 78
    assert capsys.readouterr().err == f"{tmp_path}/no.toml: no such file; --config names the file to use\n"


def test_credential_cannot_be_checked(tmp_path, capsys, monkeypatch):
    """Outside of the unit a credential is a notice, not a fault."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    path = tmp_path / "edge.toml"
    path.write_text("[mqtt]\nusername = 'u'\npassword_credential = 'pw'\n")
    assert cli.main(["check-config", "--config", str(path)]) == 0
    assert "mqtt.password_credential: not checked" in capsys.readouterr().out


def test_values_in_effect(tmp_path, capsys):
    """--show prints every value with its unit, and no secret."""
    (tmp_path / "pw").write_text("s3cret")
    path = tmp_path / "edge.toml"
    path.write_text(
        f"[mqtt]\nusername = 'u'\npassword_file = '{tmp_path}/pw'\n[mqtt.tls]\n[memory]\nbuffer_limit = '256MiB'\n"
        "[[mqtt.route]]\ntopic = 'a/{b}'\nmin_time = ''\nmax_future = '2h'\n"
    )
    assert cli.main(["check-config", "--config", str(path), "--show"]) == 0
    output = capsys.readouterr().out
    shown = dict(line.rsplit("  ", 1) for line in output.splitlines()[1:])
    shown = {name.strip(): text for name, text in shown.items()}
    assert shown["memory.buffer_limit"] == "256 MiB"
    assert shown["wal.group_delay"] == "20 ms"
    assert shown["segment.max_age"] == "3600 s"
    assert shown["wal.enabled"] == "true"
    assert shown["http.listen"] == "127.0.0.1:8181"
    assert shown["mqtt.tls.min_version"] == "1.2"
    assert (shown["mqtt.route 1.topic"], shown["mqtt.route 1.min_time"]) == ("a/{b}", "-")
    assert shown["mqtt.route 1.max_future"] == "7200 s"
    assert "s3cret" not in output


def test_as_json(tmp_path, capsys):
    """--json is one object, for a sound configuration and for one with faults; the exit code is the same."""
    path = tmp_path / "edge.toml"
    path.write_text("[mqtt]\nport = 8883\n")
    assert cli.main(["check-config", "--config", str(path), "--json", "--show"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert (checked["faults"], checked["files"], checked["values"]["mqtt.port"]) == ([], [str(path)], "8883")
    path.write_text("[mqtt]\nport = 0\nhots = 'x'\n")
    assert cli.main(["check-config", "--config", str(path), "--json"]) == 78
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert [fault.split(": ")[0] for fault in faults] == [f"{path}:2", f"{path}:3"]
