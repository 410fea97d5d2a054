"""From an MQTT topic to a durable, queryable, persisted row: the real broker, the real process, real files."""

import datetime as dt
import subprocess
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from appliance_process import ApplianceProcess, RefusedError
from broker import Mosquitto
from ports import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROUTES = [
    {"topic": "plants/{site}/+/{device}/lp", "database": "edge"},
    {"topic": "lab/{bench}", "database": "lab", "precision": "ms"},
]
QUICK = {"segment": {"max_age": "1s"}}


@pytest.fixture
def broker(tmp_path):
    broker = Mosquitto(tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


def appliance_for(broker, directory, settings=None) -> ApplianceProcess:
    return ApplianceProcess(directory, mqtt_port=broker.port, settings=settings, routes=ROUTES)


def wait_subscribed(appliance) -> None:
    wait_until(lambda: appliance.metric("broker_connected") == 1, "the filters are granted", 20)


def publish(broker, topic: str, payload: str) -> None:
    """Publish with QoS 1; returning means that the broker has it."""
    command = ["mosquitto_pub", "-p", str(broker.port), "-q", "1", "-t", topic, "-s"]
    subprocess.run(command, input=payload.encode(), check=True, timeout=20)


def wait_rows(appliance, table: str, count: int, database: str = "edge") -> None:
    def is_there() -> bool:
        try:
            return appliance.query(f"SELECT count(*) AS n FROM {table}", database=database) == [{"n": count}]
        except RefusedError as error:
            assert error.status == 404
            return False

    wait_until(is_there, f"{count} rows in {table}", 20)


def test_message_becomes_a_row_with_the_tags_of_its_topic(broker, tmp_path):
    """Published line protocol is visible in SQL with route tags, exact time and types, and its message is acked."""
    with appliance_for(broker, tmp_path / "a").start() as appliance:
        wait_subscribed(appliance)
        now_ns = time.time_ns()
        publish(broker, "plants/k2/line3/press-04/lp", f'press,site=own temp=81.5,n=1204i,s="run" {now_ns}')
        publish(broker, "plants/k2/line3/press-04/lp", f"press temp=82 {now_ns + 1}\nbroken\npress n=5i {now_ns + 2}")
        wait_rows(appliance, "press", 3)
        rows = appliance.query("SELECT * FROM press ORDER BY time")
        assert rows[0] == {
            "time": _rfc3339(now_ns),
            "device": "press-04",
            "site": "own",
            "temp": 81.5,
            "n": 1204,
            "s": "run",
        }
        assert [row["site"] for row in rows[1:]] == ["k2", "k2"]
        wait_until(lambda: appliance.metric("acked_total") == 2, "both messages are acked", 10)
        assert appliance.metric("rejected_lines_total") == 1
        assert appliance.metric("tag_collisions_total") == 1


def _rfc3339(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def test_rows_survive_a_kill_and_a_second_one(broker, tmp_path):
    """What was acknowledged is in the next query, also after SIGKILL, and after SIGKILL right after that."""
    with appliance_for(broker, tmp_path / "a").start() as appliance:
        wait_subscribed(appliance)
        publish(broker, "plants/k2/l/d1/lp", "press temp=1")
        appliance.write(b"press temp=2\nfan rpm=3i 17")
        wait_rows(appliance, "press", 2)
        before = appliance.query("SELECT * FROM press ORDER BY time"), appliance.query("SELECT * FROM fan")
        for _ in range(2):
            appliance.kill()
            appliance.start()
            after = appliance.query("SELECT * FROM press ORDER BY time"), appliance.query("SELECT * FROM fan")
            assert after == before


def test_segment_becomes_parquet_that_others_can_read(broker, tmp_path):
    """A cut segment is one sorted file a table and date, under its Hive path, with the whole time in two columns."""
    with appliance_for(broker, tmp_path / "a", QUICK).start() as appliance:
        lines = [f"press,site=s{n % 2} temp={n}.5,n={n}i {1_700_000_000_000_000_000 + n * 1001}" for n in (3, 1, 2, 0)]
        appliance.write(
            "\n".join([*lines, "press temp=1 1699999999999999999", "press temp=1 1700006400000000000"]).encode()
        )
        wait_until(lambda: appliance.metrics().get('parts{state="stored"}') == 2, "both dates are stored", 20)
        files = sorted((appliance.data_dir / "store").rglob("*.parquet"))
        assert [path.parent.name for path in files] == ["date=2023-11-14", "date=2023-11-15"]
        assert [path.parent.parent.relative_to(appliance.data_dir / "store").as_posix() for path in files] == [
            "edge/press"
        ] * 2
        table = pq.ParquetFile(files[0]).read()
        assert table.schema.field("time").type == pa.timestamp("us", tz="UTC")
        exact = [
            us * 1000 + rest
            for us, rest in zip(table["time"].cast(pa.int64()).to_pylist(), table["time_ns"].to_pylist(), strict=True)
        ]
        keys = list(zip(table["site"].to_pylist(), exact, strict=True))
        assert keys == sorted(keys, key=lambda key: (key[0] or "", key[1]))
        assert 1_700_000_000_000_003_003 in exact
        wait_rows(appliance, "press", 6)
        assert appliance.metric("wal_files") == 1


def test_last_write_wins_across_memory_parts_and_restarts(broker, tmp_path):
    """Each field shows the value written last, wherever the writes are."""
    with appliance_for(broker, tmp_path / "a", QUICK).start() as appliance:
        appliance.write(b"p,a=1 v=1,w=1 5\np,a=2 v=1 5")
        wait_until(lambda: appliance.metric("parts") == 1, "the first write is a part", 20)
        appliance.write(b"p,a=1 v=2 5")
        expected = [{"a": "1", "v": 2.0, "w": 1.0}, {"a": "2", "v": 1.0, "w": None}]
        sql = "SELECT a, v, w FROM p ORDER BY a"
        assert appliance.query(sql) == expected
        wait_until(lambda: appliance.metric("parts") == 2, "the second write is a part", 20)
        assert appliance.query(sql) == expected
        appliance.kill()
        appliance.start()
        assert appliance.query(sql) == expected
        appliance.write(b"p,a=2 w=9 5")
        assert appliance.query(sql) == [expected[0], {"a": "2", "v": 1.0, "w": 9.0}]
        assert appliance.query("SELECT count(*) AS n FROM p") == [{"n": 2}]


def test_databases_and_precision_follow_the_route(broker, tmp_path):
    """Each route has its database and precision."""
    with appliance_for(broker, tmp_path / "a").start() as appliance:
        wait_subscribed(appliance)
        publish(broker, "lab/b7", "vib rms=2.5 1767225600123")
        wait_rows(appliance, "vib", 1, "lab")
        assert appliance.query("SELECT * FROM vib", database="lab") == [
            {"time": "2026-01-01T00:00:00.123000000Z", "bench": "b7", "rms": 2.5}
        ]
        with pytest.raises(RefusedError, match="vib"):
            appliance.query("SELECT * FROM vib")


def test_message_published_while_the_appliance_is_down_arrives(broker, tmp_path):
    """The session stays with the broker over a stop: no UNSUBSCRIBE, nothing lost in between."""
    with appliance_for(broker, tmp_path / "a").start() as appliance:
        wait_subscribed(appliance)
        publish(broker, "plants/k2/l/d1/lp", "press temp=1")
        wait_rows(appliance, "press", 1)
        assert appliance.stop() == 0
        publish(broker, "plants/k2/l/d1/lp", "press temp=2")
        appliance.start()
        wait_rows(appliance, "press", 2)


def test_broker_that_comes_later_is_found(tmp_path):
    """An absent broker is normal: the appliance is ready, serves HTTP, and connects when it can."""
    broker = Mosquitto(tmp_path / "broker")
    with appliance_for(broker, tmp_path / "a").start() as appliance:
        appliance.write(b"press temp=1")
        assert appliance.metric("broker_connected") == 0
        broker.start()
        wait_subscribed(appliance)
        publish(broker, "plants/k2/l/d1/lp", "press temp=2")
        wait_rows(appliance, "press", 2)
    broker.stop()


def test_without_a_log_a_clean_stop_keeps_the_rows_and_says_that_a_crash_would_not(broker, tmp_path):
    """`wal.enabled = false` is a named, degraded mode; its rows become parts before a clean stop ends."""
    settings = {"wal": {"enabled": False, "min_free": "1MiB"}}
    with appliance_for(broker, tmp_path / "a", settings).start() as appliance:
        appliance.write(b"press temp=1 5")
        assert b"wal.enabled" in appliance.get("/health")
        assert appliance.stop() == 0
        appliance.start()
        assert appliance.query("SELECT temp FROM press") == [{"temp": 1.0}]
        assert not list((appliance.data_dir / "wal").iterdir())


def test_stop_under_load_is_quick_and_loses_nothing(broker, tmp_path):
    """SIGTERM in the middle of a stream of writes ends the process in bounded time; every 204 is there afterwards."""
    import threading

    with appliance_for(broker, tmp_path / "a").start() as appliance:
        acked: list[int] = []

        def write() -> None:
            for n in range(100_000):
                try:
                    appliance.write(b"press n=%di %d" % (n, n))
                except (OSError, RefusedError):
                    return
                acked.append(n)

        writer = threading.Thread(target=write)
        writer.start()
        wait_until(lambda: len(acked) > 20, "some writes are acknowledged", 20)
        assert appliance.stop(timeout_s=10) == 0
        writer.join(20)
        appliance.start()
        stored = {row["n"] for row in appliance.query("SELECT n FROM press")}
        assert set(acked) <= stored


def test_store_that_is_away_is_named_and_holds_nothing_up(broker, tmp_path):
    """Without its store the appliance starts, takes rows, persists and answers; parts wait in the spool."""
    settings = {**QUICK, "store": {"url": "file:///proc/nowhere"}}
    with appliance_for(broker, tmp_path / "a", settings).start() as appliance:
        assert b"store" in appliance.get("/health")
        appliance.write(b"press temp=1 5")
        wait_until(lambda: appliance.metrics().get('parts{state="spooled"}') == 1, "the part is spooled", 20)
        assert appliance.query("SELECT temp FROM press") == [{"temp": 1.0}]


def test_files_are_not_for_everybody(broker, tmp_path):
    """Whatever mask the process was started with, others can read nothing of what it stores."""
    with appliance_for(broker, tmp_path / "a", QUICK).start() as appliance:
        with pytest.raises(RefusedError):
            appliance.write(b"press temp=1 5\nbroken")
        wait_until(lambda: appliance.metric("parts") == 1, "a part is written", 20)
        paths = [appliance.data_dir, *appliance.data_dir.rglob("*")]
        assert [path for path in paths if path.stat().st_mode & 0o007] == []
