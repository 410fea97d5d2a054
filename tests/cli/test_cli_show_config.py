"""cli.show_config: values with the place they come from."""

import json

import pytest

from edge_appliance.cli import main as cli


@pytest.fixture
def shown(tmp_path, capsys):
    """Run it over two files; returns the lines."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "pw").write_text("s3cret")
    (tmp_path / "edge.toml").write_text(
        f'[mqtt]\nport = 1884\nusername = "u"\npassword_file = "{tmp_path}/pw"\n[[mqtt.route]]\ntopic = "a/{{b}}"\n'
    )
    (tmp_path / "conf.d/site.toml").write_text('[mqtt]\nport = 1885\n[[mqtt.route]]\ntopic = "c/{d}"\nqos = 0\n')

    def _shown(*options):
        assert cli.main(["show-config", "--config", str(tmp_path / "edge.toml"), *options]) == 0
        return capsys.readouterr().out.replace(f"{tmp_path}/", "")

    return _shown


def test_stated_values_with_their_place(shown):
    """Only what a file states is shown, with the file and line that won; a password is a file's name at most."""
    rows = [tuple(line.split()) for line in shown().splitlines()]
    assert ("mqtt.port", "1885", "conf.d/site.toml:2") in rows
    assert ("mqtt.route", "1.topic", "a/{b}", "edge.toml:6") in rows
    assert ("mqtt.route", "2.topic", "c/{d}", "conf.d/site.toml:4") in rows
    assert not [row for row in rows if row[-1] == "default"]
    assert "s3cret" not in shown("--effective")


def test_effective_values(shown):
    """With --effective all values are there, and those of no file say so."""
    found = {row["key"]: row for row in json.loads(shown("--effective", "--json"))}
    assert found["mqtt.keepalive"] == {"key": "mqtt.keepalive", "value": "30 s", "origin": "default"}
    assert found["mqtt.route 2.qos"]["origin"] == "conf.d/site.toml:5"


def test_nothing_stated(tmp_path, capsys):
    """An empty file is answered with a sentence, not with nothing."""
    (tmp_path / "edge.toml").touch()
    assert cli.main(["show-config", "--config", str(tmp_path / "edge.toml")]) == 0
    assert "--effective" in capsys.readouterr().out
