"""The appliance at work, started by `make run`: a broker, the appliance, a simulated fleet, and what came of it.

    DEMO=0     leave the fleet out and publish to it yourself
    FOR=20s    end after that time; without it, Ctrl-C ends it
    RATE=1500  lines per second of the fleet

Everything lives in .edge-demo, which is emptied at the start and kept at the end. The exit code is 0 only when SQL
counts every good line that the broker took from the fleet.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
from fleet import TABLES, Fleet
from screen import StatusLine, size_text
from servers import DATABASE, Appliance, Broker, DemoError

DIRECTORY: Final = Path(__file__).resolve().parents[2] / ".edge-demo"
REFRESH_S: Final = 0.5
SETTLE_S: Final = 60.0
"""How long the end waits for what is still on its way."""
QUESTION: Final = """\
SELECT site, count(*) AS readings, round(avg(flow), 2) AS avg_flow, round(max(pressure), 3) AS max_pressure,
       max(time) AS last
FROM pumps GROUP BY site ORDER BY site"""


def main() -> int:
    """Run the demo; returns the exit code."""
    try:
        bound_s = parse_duration(os.environ.get("FOR", ""))
        lines_per_s = parse_rate(os.environ.get("RATE", ""))
    except ValueError as error:
        print(f"make run: {error}", file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _stop_once(stop))
    try:
        with empty_directory(DIRECTORY), contextlib.ExitStack() as running:
            return run(running, stop, bound_s, lines_per_s if os.environ.get("DEMO") != "0" else None)
    except DemoError as error:
        print(f"make run: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nstopped at once: the books are not settled", file=sys.stderr)
    return 1


def run(running: contextlib.ExitStack, stop: threading.Event, bound_s: float, lines_per_s: float | None) -> int:
    """Start everything, watch it until the end, and report; `running` stops what was started, last one first."""
    print(f"All files are in {DIRECTORY.name}/, which was emptied.")
    broker = Broker(DIRECTORY)
    running.callback(broker.stop)
    broker.wait()
    appliance = Appliance(DIRECTORY, broker.port)
    running.callback(appliance.stop)
    appliance.wait()
    print(f"Mosquitto listens on {broker.port}, the appliance on http://127.0.0.1:{appliance.http_port}.")
    fleet = None
    if lines_per_s is None:
        print("Publish a line, and ask for it:")
        print(f"  mosquitto_pub -p {broker.port} -q 1 -t plants/berlin/pumps/pump-1/lp -m 'pumps flow=42'")
        print(f'  .venv/bin/edge-appliance query --config {appliance.config} -d {DATABASE} "SELECT * FROM pumps"')
    else:
        fleet = Fleet(broker.port, lines_per_s)
        running.callback(fleet.stop, 0.0)
        print(f"A fleet of 48 devices publishes {lines_per_s:,.0f} lines a second with QoS 1.")
    print("Ctrl-C ends it." if bound_s == float("inf") else f"It ends after {bound_s:g} s, or with Ctrl-C.", flush=True)
    watch(broker, appliance, stop, time.monotonic() + bound_s)
    is_complete = fleet is None or settle(fleet, appliance)
    report(appliance, with_answer=fleet is not None)
    if code := appliance.stop():
        raise DemoError(f"edge-appliance stopped with exit code {code}; see {appliance.log}")
    return 0 if is_complete else 1


def watch(broker: Broker, appliance: Appliance, stop: threading.Event, end_s: float) -> None:
    """Show the status until the time is over or somebody ends it; raises DemoError when a server has died."""
    with StatusLine() as status:
        while not stop.is_set() and time.monotonic() < end_s:
            broker.check()
            appliance.check()
            with contextlib.suppress(OSError):  # an answer that is late is shown the next time
                status.show(appliance.metrics())
            stop.wait(min(REFRESH_S, max(0.0, end_s - time.monotonic())))


def settle(fleet: Fleet, appliance: Appliance) -> bool:
    """Wait until the appliance has what the broker took, and compare the books; says what differs."""
    unsent = fleet.stop(SETTLE_S)
    good, wrong = fleet.good, fleet.wrong
    deadline_s = time.monotonic() + SETTLE_S
    while (metrics := appliance.metrics())["lines_total"] < good.total() and time.monotonic() < deadline_s:
        appliance.check()
        time.sleep(0.1)
    counted = Counter({table: appliance.count(table) for table in TABLES})
    print(f"\n{'table':<12}{'published and acked':>22}{'counted by SQL':>18}")
    for table in TABLES:
        print(f"{table:<12}{good[table]:>22,}{counted[table]:>18,}")
    rejected = int(metrics.get("rejected_lines_total", 0))
    print(f"{'wrong lines':<12}{wrong:>22,}{rejected:>18,} rejected, kept as dead letters")
    if unsent:
        print(f"{unsent:,} messages were not taken by the broker, so they may be there or not.")
        return all(counted[table] >= good[table] for table in TABLES)
    return counted == good and rejected == wrong


def report(appliance: Appliance, *, with_answer: bool) -> None:
    """Show an answer in SQL, and the Parquet files with what is in one of them."""
    if with_answer:
        print(f'\n$ edge-appliance query "{QUESTION}"')
        print(appliance.query(QUESTION).rstrip())
    store = appliance.data_dir / "store"
    files = sorted(path for path in store.rglob("*.parquet") if path.is_file())
    where = store.relative_to(DIRECTORY.parent)
    print(f"\n{len(files)} Parquet files in {where}/; what came last is still in memory and in the log:")
    for path in files:
        print(f"  {size_text(path.stat().st_size):>10}  {path.relative_to(store)}")
    if files:
        largest = max(files, key=lambda path: path.stat().st_size)
        with pq.ParquetFile(largest) as file:
            table = file.read()
        print(f"\npyarrow reads {table.num_rows:,} rows from {largest.relative_to(store)}:")
        for field in table.schema:
            print(f"  {field.name}: {field.type}, such as {table.column(field.name)[0]}")


@contextlib.contextmanager
def empty_directory(directory: Path) -> Iterator[None]:
    """Empty `directory` and hold it until the end; raises DemoError when another demo has it."""
    directory.mkdir(exist_ok=True)
    lock_path = directory / "lock"
    with lock_path.open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DemoError(f"another demo is running in {directory}") from None
        for entry in directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry != lock_path:
                entry.unlink()
        yield


def parse_duration(text: str) -> float:
    """Seconds of `20s`, `2m`, `1h` or `20`; infinity for nothing."""
    if not text:
        return float("inf")
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    if match is None:
        raise ValueError(f"FOR={text} is not a duration such as 20s or 2m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def parse_rate(text: str) -> float:
    """Lines a second of `1500`; 1,500 for nothing."""
    if not text:
        return 1_500
    if re.fullmatch(r"\d+(?:\.\d+)?", text.strip()) is None:
        raise ValueError(f"RATE={text} is not a number of lines a second such as 1500")
    return float(text)


def _stop_once(stop: threading.Event) -> None:
    """End in good order at the first signal, at once at the second."""
    if stop.is_set():
        raise KeyboardInterrupt
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
