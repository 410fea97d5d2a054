"""One contract over every store: a directory, and S3 by SeaweedFS. Behind a faulty network only S3."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from object_stores import BUCKET, SeaweedFS, store_settings
from ports import free_port, wait_until

from edge_appliance.errors import StoreError
from edge_appliance.health import Health
from edge_appliance.store import ObjectStore
from edge_appliance.store_directory import DirectoryStore
from edge_appliance.store_port import Store
from edge_appliance.store_probe import Prober, probe_store

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KEY = "edge/cpu%2F1/date=2026-01-02/gw-01-0123abcd-00000000000000000007-00000000000000000007-0000.parquet"


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """One server for the module."""
    with SeaweedFS(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(seaweed: SeaweedFS) -> Iterator[FaultProxy]:
    """A faulty way to it."""
    with FaultProxy(seaweed.port) as proxy:
        yield proxy


Open = Callable[..., ObjectStore]


@pytest.fixture
def open_s3(tmp_path: Path, seaweed: SeaweedFS) -> Iterator[Open]:
    """Opens stores below a prefix of the test's own."""
    opened: list[ObjectStore] = []

    def open_one(port: int | None = None, **keys: object) -> ObjectStore:
        keys = {"prefix": f"edge/{tmp_path.name}", **keys}
        store = ObjectStore(store_settings(tmp_path, port or seaweed.port, **keys))  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each kind of store."""
    if request.param == "directory":
        return DirectoryStore(tmp_path / "store")
    opened: Store = request.getfixturevalue("open_s3")(timeout="20s")
    return opened


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of some size."""
    path = tmp_path / "source"
    path.write_bytes(bytes(range(256)) * 1000)
    return path


# The contract --------------------------------------------------------------------------------------------------


def test_put_is_create_only_and_may_be_repeated(store: Store, source: Path, tmp_path: Path) -> None:
    """The same content again is success, another content is told and changes nothing."""
    other = tmp_path / "other"
    other.write_bytes(source.read_bytes()[::-1])
    assert store.put(source, KEY)
    assert store.put(source, KEY)
    assert store.put(source, KEY, is_repeat=True)
    assert not store.put(other, KEY)
    assert not store.put(other, KEY, is_repeat=True)
    assert store.read(KEY, 0, 300_000) == source.read_bytes()


def test_what_is_stored_can_be_looked_at_read_listed_fetched_deleted(
    store: Store, source: Path, tmp_path: Path
) -> None:
    """Keys with percent signs survive all of it; what is missing is None, or an error that says so."""
    assert store.stat(KEY) is None
    assert store.put(source, KEY)
    found = store.stat(KEY)
    assert found is not None
    assert (found.key, found.size_bytes) == (KEY, 256_000)
    assert abs(found.modified_s - time.time()) < 30
    assert store.read(KEY, 255, 3) == b"\xff\x00\x01"
    store.fetch(KEY, tmp_path / "fetched", 256_000, 10)
    assert (tmp_path / "fetched").read_bytes() == source.read_bytes()
    store.write("_edge/x.json", b"{}")
    store.write("_edge/x.json", b"{1}")
    assert {(o.key, o.size_bytes) for o in store.objects("")} == {(KEY, 256_000), ("_edge/x.json", 3)}
    assert [o.key for o in store.objects("edge/cpu%2F1")] == [KEY]
    store.delete(KEY)
    store.delete(KEY)
    assert store.objects("edge") == []
    with pytest.raises(StoreError):
        store.fetch(KEY, tmp_path / "gone", 1, 10)


def test_create_has_one_winner(store: Store) -> None:
    """Of several who create the same name at once, one is told that it did."""
    wins: list[bool] = []
    start = threading.Barrier(8)

    def race(number: int) -> None:
        start.wait(10)
        wins.append(store.create("_edge/race", str(number).encode()))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(wins) == [False] * 7 + [True]


def test_probe_finds_a_sound_store(store: Store) -> None:
    """Create, refused create, range, listing, look and deletion work, and nothing is left of it."""
    probe = probe_store(store, "gw-01", time.time)
    assert probe.faults == []
    assert probe.is_conditional
    assert probe.clock_skew_s == pytest.approx(0, abs=5)
    assert store.objects("_edge/probe") == []


def test_probe_sees_a_wrong_clock(store: Store) -> None:
    """An hour between our clock and the store's is named, with its direction."""
    for offset_s, words in ((3600, "ahead of"), (-3600, "behind")):
        probe = probe_store(store, "gw-01", lambda offset_s=offset_s: time.time() + offset_s)  # type: ignore[misc]
        assert len(probe.faults) == 1
        assert words in probe.faults[0]
        assert any(f"{seconds} s" in probe.faults[0] for seconds in range(3590, 3601))


def test_closed_store_refuses(store: Store, source: Path) -> None:
    """After close, object storage gives one sentence; closing twice is fine."""
    store.close()
    store.close()
    if store.directory is None:
        with pytest.raises(StoreError, match="stopping"):
            store.put(source, KEY)


# What goes wrong, in words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "credentials", "words"),
    [
        pytest.param({"bucket": "no-such-bucket"}, None, "the bucket does not exist", id="missing bucket"),
        pytest.param({}, ("edgekey", "hunter2"), "the secret key does not fit the key id", id="wrong secret"),
        pytest.param({}, ("nobody", "hunter2"), "the store does not know this key id", id="wrong key id"),
        pytest.param({"endpoint": "http://127.0.0.1:1"}, None, "the connection is refused", id="refused"),
        pytest.param({"endpoint": "http://store.invalid:9"}, None, "its name cannot be resolved", id="no such host"),
        pytest.param({"endpoint": "https"}, None, "it does not speak TLS", id="TLS to a plain port"),
    ],
)
def test_reason_is_in_words(
    open_s3: Open,
    seaweed: SeaweedFS,
    source: Path,
    tmp_path: Path,
    keys: dict[str, object],
    credentials: tuple[str, str] | None,
    words: str,
) -> None:
    """Each refusal names its reason, the store and where the credentials came from, and shows no secret."""
    if keys.get("endpoint") == "https":
        keys = {"endpoint": f"https://127.0.0.1:{seaweed.port}"}
    store = open_s3(**keys)
    if credentials is not None:
        text = "aws_access_key_id = {}\naws_secret_access_key = {}\n".format(*credentials)
        (tmp_path / "s3-credentials").write_text(text)
    started_s = time.monotonic()
    with pytest.raises(StoreError) as caught:
        store.put(source, KEY)
    assert time.monotonic() - started_s < 10
    assert words in caught.value.reason
    assert f"s3://{keys.get('bucket', BUCKET)}" in caught.value.reason
    assert f"file {tmp_path}/s3-credentials" in caught.value.reason
    assert "hunter2" not in caught.value.reason
    assert "\n" not in caught.value.reason


def test_new_credentials_are_used_without_a_restart(open_s3: Open, source: Path, tmp_path: Path) -> None:
    """A changed credentials file counts from the next request on; one that is broken or gone is named."""
    store = open_s3()
    path = tmp_path / "s3-credentials"
    good = path.read_text()
    path.write_text(good.replace("edgesecret", "expired"))
    with pytest.raises(StoreError, match="secret key"):
        store.put(source, KEY)
    path.write_text("half a line")
    with pytest.raises(StoreError, match="not of the form"):
        store.put(source, KEY)
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        store.put(source, KEY)
    path.write_text(good)
    assert store.put(source, KEY)


def test_proxy_is_used(open_s3: Open, source: Path, proxy: FaultProxy) -> None:
    """With store.proxy nobody is asked directly: a wrong proxy is an error although the store is there."""
    with pytest.raises(StoreError):
        open_s3(proxy="http://127.0.0.1:1").put(source, KEY)


# A faulty network ----------------------------------------------------------------------------------------------


def test_answer_lost_after_the_commit_is_success(
    open_s3: Open, proxy: FaultProxy, seaweed: SeaweedFS, source: Path
) -> None:
    """A put whose answer never comes is looked at: the object is there with our content, so it is stored."""
    store = open_s3(proxy.port, retries=0)
    store.is_conditional = True
    proxy.become("drop answer")
    healer = threading.Timer(0.0, _heal_after, (proxy, 1))
    healer.start()
    try:
        assert store.put(source, KEY)
    finally:
        healer.join()
        proxy.become("none")
    assert proxy.dropped_answers
    assert open_s3().read(KEY, 0, 10) == source.read_bytes()[:10]


def _heal_after(proxy: FaultProxy, answers: int) -> None:
    before = proxy.dropped_answers
    wait_until(lambda: proxy.dropped_answers >= before + answers, "an answer was dropped", 10, 0.001)
    proxy.become("none")


def test_answer_lost_for_another_content_is_told(
    open_s3: Open, proxy: FaultProxy, source: Path, tmp_path: Path
) -> None:
    """When the look finds another content of the same size, the name was used twice; nothing is overwritten."""
    other = tmp_path / "other"
    other.write_bytes(source.read_bytes()[::-1])
    assert open_s3().put(other, KEY)
    store = open_s3(proxy.port, retries=0)
    store.is_conditional = True
    proxy.become("drop answer")
    healer = threading.Timer(0.0, _heal_after, (proxy, 1))
    healer.start()
    try:
        assert not store.put(source, KEY)
    finally:
        healer.join()
        proxy.become("none")
    assert open_s3().read(KEY, 0, 10) == other.read_bytes()[:10]


def test_burst_of_503_is_ridden_out_or_told(open_s3: Open, proxy: FaultProxy, source: Path) -> None:
    """A burst shorter than the retries is not seen; a longer one is told as overload."""
    proxy.become("503")
    try:
        with pytest.raises(StoreError, match="overloaded or down"):
            open_s3(proxy.port, retries=1).put(source, KEY)
        healer = threading.Timer(0.5, proxy.become, ("none",))
        healer.start()
        assert open_s3(proxy.port, retries=5).put(source, KEY)
        healer.join()
    finally:
        proxy.become("none")


def test_black_hole_ends_at_the_time_limit(open_s3: Open, proxy: FaultProxy, source: Path) -> None:
    """A store that takes everything and says nothing costs the time limit, which follows the size."""
    proxy.become("hang")
    try:
        started_s = time.monotonic()
        with pytest.raises(StoreError, match="there is no answer within"):
            open_s3(proxy.port, timeout="1s").stat(KEY)
        assert 0.9 < time.monotonic() - started_s < 2.5
        store = open_s3(proxy.port, timeout="1s")
        store.is_conditional = True
        with pytest.raises(StoreError, match="there is no answer within 5 s"):
            store.put(source, KEY)  # 250 KiB at 64 KiB/s
    finally:
        proxy.become("none")


def test_close_ends_what_hangs(open_s3: Open, proxy: FaultProxy, source: Path) -> None:
    """A put in a black hole ends at once when the store is closed."""
    proxy.become("hang")
    store = open_s3(proxy.port, timeout="1h")
    outcome: list[str] = []

    def put() -> None:
        try:
            store.put(source, KEY)
        except StoreError as error:
            outcome.append(error.reason)

    before = proxy.requests
    thread = threading.Thread(target=put)
    try:
        thread.start()
        wait_until(lambda: proxy.requests > before, "the put is on its way")
        store.close()
        thread.join(5)
        assert outcome == ["the appliance is stopping"]
    finally:
        proxy.become("none")


def test_slow_link_is_used_as_long_as_it_moves(open_s3: Open, proxy: FaultProxy, source: Path) -> None:
    """A link above the slowest supported rate gets a body through that takes far longer than the time limit."""
    proxy._slow_bytes_s = 100_000
    proxy.become("slow")
    try:
        started_s = time.monotonic()
        assert open_s3(proxy.port, timeout="1s").put(source, KEY)
        assert time.monotonic() - started_s > 1.5
    finally:
        proxy.become("none")


def test_store_that_is_away_does_not_change_what_is_known(open_s3: Open, tmp_path: Path) -> None:
    """The probe of an absent store changes nothing; when it is there, it is believed."""
    health = Health()
    away = open_s3(free_port(), retries=0)
    Prober(away, "gw-01", health).probe_if_due()
    assert away.is_conditional is None
    there = open_s3()
    Prober(there, "gw-01", health).probe_if_due()
    assert there.is_conditional is True
    assert health.degraded == {}
