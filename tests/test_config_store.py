"""[store]: URLs, credentials from the first place that has them, and files that are checked but never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_appliance import config
from edge_appliance.config_store import StoreSection, StoreUrl, parse_credentials, store_url

KEYS = "aws_access_key_id = AKIA1\naws_secret_access_key = hush\n"


def load(directory: Path, text: str, environ: dict[str, str] | None = None) -> StoreSection:
    """The section [store] of a configuration for s3://plant."""
    (directory / "edge.toml").write_text(f"[store]\nurl = 's3://plant'\n{text}")
    return config.load(directory / "edge.toml", environ=environ or {}).store


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:///srv/a%20b", StoreUrl("file", Path("/srv/a b"))),
        ("s3://plant", StoreUrl("s3", None, "plant", "")),
        ("s3://plant/", StoreUrl("s3", None, "plant", "")),
        ("s3://plant/edge/line 3", StoreUrl("s3", None, "plant", "edge/line 3")),
        ("gs://plant.example/x", StoreUrl("gs", None, "plant.example", "x")),
        ("az://container/x/", StoreUrl("az", None, "container", "x")),
    ],
)
def test_urls(text: str, expected: StoreUrl) -> None:
    """Scheme, bucket and prefix, or a directory; written again it means the same."""
    assert store_url(text) == expected
    assert store_url(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "expected_bytes"), [("500KB/s", 500_000), ("2 MiB/s", 2 << 20), ("1MiB", 1 << 20), ("0B/s", 0)]
)
def test_bandwidth(tmp_path: Path, text: str, expected_bytes: int) -> None:
    """A size a second, with or without saying so; zero is no limit."""
    assert load(tmp_path, f"max_bandwidth = '{text}'").max_bandwidth_bytes == expected_bytes


def test_credentials_source(tmp_path: Path) -> None:
    """A stated file or credential wins over the environment, and the metadata service is the last resort."""
    (tmp_path / "keys").write_text(KEYS)
    environ = {"AWS_ACCESS_KEY_ID": "AKIA2", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    stated = load(tmp_path, f"credentials_file = '{tmp_path}/keys'", environ)
    assert (stated.credentials_path, stated.credentials_source) == (tmp_path / "keys", f"file {tmp_path}/keys")
    named = load(tmp_path, "systemd_credential = 'keys'", environ)
    assert (named.credentials_path, named.credentials_source) == (tmp_path / "keys", "systemd credential keys")
    found = load(tmp_path, "", environ)
    assert (found.credentials_path, found.credentials_source) == (None, "environment, AWS_ACCESS_KEY_ID")
    assert load(tmp_path, "").credentials_source.startswith("instance metadata")


def test_faulty_credentials_are_named_without_a_value(tmp_path: Path) -> None:
    """A file with half a pair of keys is a fault at its key, and nothing of its content is shown."""
    (tmp_path / "keys").write_text("aws_access_key_id = AKIA1\n")
    with pytest.raises(config.ConfigError) as caught:
        load(tmp_path, f"credentials_file = '{tmp_path}/keys'")
    assert "edge.toml:3: store.credentials_file" in str(caught.value)
    assert "aws_secret_access_key" in str(caught.value)
    assert "AKIA1" not in str(caught.value)


def test_credential_without_systemd_is_a_notice(tmp_path: Path) -> None:
    """Outside of the unit the configuration can be checked; it says what was not."""
    (tmp_path / "edge.toml").write_text("[store]\nurl = 's3://plant'\nsystemd_credential = 'keys'")
    checked = config.load(tmp_path / "edge.toml", purpose="check", environ={})
    assert any("systemd_credential" in notice for notice in checked.notices)


def test_credentials_formats() -> None:
    """AWS's own file, bare lines, Azure's three kinds and Google's JSON give what the client takes."""
    pair = {"access_key_id": "AKIA1", "secret_access_key": "hush"}
    assert parse_credentials("s3", KEYS.encode()) == pair
    assert parse_credentials("s3", f"# keys\n[other]\nx=1\n[default]\n{KEYS}region=eu".encode()) == pair
    assert parse_credentials("s3", f"{KEYS}aws_session_token=t%t".encode()) == {**pair, "session_token": "t%t"}
    assert parse_credentials("az", b"account_key = a==\n") == {"account_key": "a=="}
    assert parse_credentials("az", b"sas_token = sv=1&sig=x\n") == {"sas_key": "sv=1&sig=x"}
    account = json.dumps({"private_key": "k"})
    assert parse_credentials("gs", account.encode()) == {"service_account_key": account}


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"no pair\n", b"[default\n", b"a=b\n", b"{}", b"x" * 70_000])
def test_bad_credentials_are_one_sentence(scheme: str, content: bytes) -> None:
    """Whatever the file holds, the answer is a ValueError."""
    with pytest.raises(ValueError, match=r"."):
        parse_credentials(scheme, content)  # type: ignore[arg-type]
