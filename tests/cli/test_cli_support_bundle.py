"""cli.support_bundle: what is in it, and what never is."""

import stat
import tarfile

import pytest
from ports import free_port

from edge_appliance.cli import doctor_broker
from edge_appliance.cli import main as cli

WORD = "s3cret-w0rd"


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """Make one beside a daemon that does not run; returns its path and the texts by name."""
    monkeypatch.setattr(doctor_broker, "MOSQUITTO", tmp_path / "no-mosquitto")
    for name in ("password", "token"):
        (tmp_path / name).write_text(WORD)
    (tmp_path / "data/dead_letters").mkdir(parents=True)
    (tmp_path / "data/dead_letters/1.jsonl").write_text('{"sample": "a payload"}')
    (tmp_path / "edge.toml").write_text(
        f'[node]\ndata_dir = "{tmp_path}/data"\n[http]\nlisten = "127.0.0.1:{free_port()}"\n'
        f'token_file = "{tmp_path}/token"\n[mqtt]\nport = {free_port()}\nusername = "u"\n'
        f'password_file = "{tmp_path}/password"\n'
    )
    output = tmp_path / "bundle.tar.gz"
    assert cli.main(["support-bundle", "--config", str(tmp_path / "edge.toml"), "--output", str(output)]) == 0
    with tarfile.open(output) as archive:
        texts = {member.name.split("/")[1]: archive.extractfile(member).read().decode() for member in archive}
    return output, texts


def test_bundle_holds_what_helps(bundle):
    """Version, settings with their origin, findings, the files' names are there; what is missing says why."""
    output, texts = bundle
    assert texts["version.txt"].startswith("edge-appliance ")
    assert "pyarrow" in texts["version.txt"]
    assert "edge.toml:" in texts["config.txt"]
    assert '"check": "broker"' in texts["doctor.json"]
    assert "dead_letters/1.jsonl" in texts["files.txt"]
    assert texts["status.json"].startswith("not available: no daemon at")
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_bundle_holds_no_secret_and_no_payload(bundle):
    """Neither password nor token nor a line of a device is in any part."""
    _, texts = bundle
    for name, text in texts.items():
        assert WORD not in text, name
        assert "a payload" not in text, name


def test_bundle_overwrites_nothing(bundle, tmp_path, capsys):
    """A file that is there stays as it is."""
    output, _ = bundle
    before = output.read_bytes()
    assert cli.main(["support-bundle", "--config", str(tmp_path / "edge.toml"), "--output", str(output)]) == 73
    assert output.read_bytes() == before
    assert "File exists" in capsys.readouterr().err
