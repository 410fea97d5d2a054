"""An object store that is away while ingest goes on, and comes back: how fast the spool drains, in parts of some MB.

The load goes on all the time. The drain's rate is what the store takes a second while the spool empties, against the
bytes of the parts that ingest made a second during the outage.
"""

from __future__ import annotations

import threading
import time

from appliance_process import ApplianceProcess
from bench_lines import Shape
from bench_table import Bar, Bench
from fault_proxy import FaultProxy
from object_stores import SeaweedFS, store_keys
from ports import free_port, wait_until

LINES_PER_BODY = 5_000
BODIES_S = 8
LEAST_RATIO = Bar(">=", 2.0)
RSS_LIMIT_MIB = Bar("<=", 400.0, of="value")


def outage(bench: Bench) -> None:
    """Away for a while under load, then back."""
    away_s = bench.size(60, 15)
    directory = bench.directory / "outage"
    directory.mkdir(parents=True)
    settings: dict[str, dict[str, object]] = {
        "segment": {"max_bytes": "24MiB"},
        "memory": {"buffer_limit": "96MiB"},
        "maintain": {"merge_stored": "never"},
    }
    with SeaweedFS(directory / "seaweed") as server, FaultProxy(server.port) as proxy:
        settings["store"] = store_keys(directory, proxy.port, prefix="outage")
        with ApplianceProcess(directory / "appliance", mqtt_port=free_port(), settings=settings) as appliance:
            appliance.start()
            stop = threading.Event()
            writer = threading.Thread(target=_write, args=(appliance, stop))
            writer.start()
            wait_until(lambda: appliance.metric("uploaded_parts_total") > 0, "parts arrive", 60, 0.2)
            proxy.become("away")
            time.sleep(away_s)
            spool = appliance.metric("spool_bytes")
            rss_mib = appliance.metric("resident_memory_bytes") / 2**20
            uploaded, back_s = appliance.metric("uploaded_bytes_total"), time.monotonic()
            proxy.become("none")
            wait_until(lambda: appliance.metric("uploaded_bytes_total") > uploaded, "it is found again", 60, 0.02)
            uploaded, started_s = appliance.metric("uploaded_bytes_total"), time.monotonic()
            done = uploaded + appliance.metric("spool_bytes")
            wait_until(lambda: appliance.metric("uploaded_bytes_total") >= done, "it has drained", 300, 0.02)
            took_s = time.monotonic() - started_s
            sent = appliance.metric("uploaded_bytes_total") - uploaded
            stop.set()
            writer.join()
            parts = appliance.metric("uploaded_parts_total")
            mean_mib = appliance.metric("uploaded_bytes_total") / max(parts, 1) / 2**20
            appliance.stop()
    note = (
        f"{spool / 2**20:.0f} MiB in the spool after {away_s} s, {mean_mib:.1f} MiB a part, drained in {took_s:.1f} s"
    )
    note += f", found again after {started_s - back_s:.1f} s"
    bench.add(
        "drain after an outage, ingest going on",
        sent / took_s / 2**20,
        "MiB/s",
        peer=spool / away_s / 2**20,
        peer_name="rate of ingest",
        bar=LEAST_RATIO,
        note=note,
    )
    bench.add("memory at the end of the outage", rss_mib, "MiB", bar=RSS_LIMIT_MIB)


def _write(appliance: ApplianceProcess, stop: threading.Event) -> None:
    """The nominal load."""
    bodies = Shape(tables=1, fields=12).bodies(LINES_PER_BODY * 40, LINES_PER_BODY)
    base_ns = time.time_ns()
    number = 0
    while not stop.is_set():
        started_s = time.monotonic()
        body = bodies[number % len(bodies)]
        appliance.write(_later(body, base_ns, number))
        number += 1
        stop.wait(max(0.0, 1 / BODIES_S - (time.monotonic() - started_s)))


def _later(body: bytes, base_ns: int, number: int) -> bytes:
    """The same lines at times that were not there yet."""
    lines = body.splitlines()
    first_ns = base_ns + number * LINES_PER_BODY * 1_000
    return b"\n".join(line.rsplit(b" ", 1)[0] + b" %d" % (first_ns + n * 1_000) for n, line in enumerate(lines))
