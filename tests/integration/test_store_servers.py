"""Other servers than the usual one: each is held to the same contract, or found out by the probe. See `make stores`."""

from __future__ import annotations

import base64
import email.utils
import hmac
import http.client
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import obstore
import pytest
from object_stores import (
    ACCESS_KEY,
    AZURITE_ACCOUNT,
    AZURITE_KEY,
    BUCKET,
    SECRET_KEY,
    azure_settings,
    azurite,
    moto,
    rclone,
    store_settings,
)
from obstore.store import S3Store

from edge_appliance.errors import StoreError
from edge_appliance.health import Health
from edge_appliance.store import ObjectStore
from edge_appliance.store_probe import Prober, probe_store

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KEY = "edge/cpu%2F1/date=2026-01-02/gw-01-0123abcd-00000000000000000007-00000000000000000007-0000.parquet"


@pytest.fixture(params=["moto", "azurite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """A store of each kind, with its bucket."""
    with moto(tmp_path) if request.param == "moto" else azurite(tmp_path) as server:
        if request.param == "moto":
            settings = store_settings(tmp_path, server.port)
            _make_bucket(server.port)
        else:
            settings = azure_settings(tmp_path, server.port)
            _make_container(server.port)
        store = ObjectStore(settings)
        yield store
        store.close()


def _put_empty(port: int, path: str, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("PUT", path, b"", headers)
    assert connection.getresponse().status in (200, 201)
    connection.close()


def _make_bucket(port: int) -> None:
    _put_empty(port, f"/{BUCKET}", {})


def _make_container(port: int) -> None:
    # Creating a container is no operation of the client, so the request is signed by hand.
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    listed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = f"PUT{12 * chr(10)}{listed}/{AZURITE_ACCOUNT}/{AZURITE_ACCOUNT}/{BUCKET}\nrestype:container"
    digest = hmac.digest(base64.b64decode(AZURITE_KEY), signed.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    _put_empty(port, f"/{AZURITE_ACCOUNT}/{BUCKET}?restype=container", headers)


def test_contract(store: ObjectStore, tmp_path: Path) -> None:
    """Create-only puts with comparison, looks, ranges, listings, fetches and deletions are as with every store."""
    source, other = tmp_path / "source", tmp_path / "other"
    source.write_bytes(bytes(range(256)) * 1000)
    other.write_bytes(source.read_bytes()[::-1])
    assert store.put(source, KEY)
    assert store.put(source, KEY)
    assert store.put(source, KEY, is_repeat=True)
    assert not store.put(other, KEY)
    found = store.stat(KEY)
    assert found is not None
    assert (found.key, found.size_bytes) == (KEY, 256_000)
    assert store.read(KEY, 255, 3) == b"\xff\x00\x01"
    store.fetch(KEY, tmp_path / "fetched", 256_000, 10)
    assert (tmp_path / "fetched").read_bytes() == source.read_bytes()
    assert [o.key for o in store.objects("edge/cpu%2F1")] == [KEY]
    store.delete(KEY)
    assert store.stat(KEY) is None
    store.delete(KEY)
    assert probe_store(store, "gw-01", time.time).faults == []


def test_missing_bucket_is_told(store: ObjectStore, tmp_path: Path) -> None:
    """A bucket or container that does not exist is named so, at the first put."""
    settings = msgspec.structs.replace(
        store._settings, url=msgspec.structs.replace(store._settings.url, bucket="no-such-bucket")
    )
    (tmp_path / "source").write_bytes(b"x")
    missing = ObjectStore(settings)
    with pytest.raises(StoreError, match=r"the (bucket|container) does not exist"):
        missing.put(tmp_path / "source", KEY)
    missing.close()


def test_probe_finds_out_who_ignores_conditions(tmp_path: Path) -> None:
    """A server that overwrites what exists is named, and from then on every put looks first."""
    with rclone(tmp_path) as server:
        store = ObjectStore(store_settings(tmp_path, server.port))
        client = S3Store(
            BUCKET,
            endpoint=f"http://127.0.0.1:{server.port}",
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
        )
        health = Health()
        Prober(store, "gw-01", health).probe_if_due()
        assert store.is_conditional is False
        assert "this store ignores conditions" in health.degraded["store_probe"]
        (tmp_path / "one").write_bytes(b"one")
        (tmp_path / "two").write_bytes(b"two")
        assert store.put(tmp_path / "one", KEY)
        assert not store.put(tmp_path / "two", KEY)
        assert bytes(obstore.get(client, f"edge/{KEY}").bytes()) == b"one"
        store.close()
