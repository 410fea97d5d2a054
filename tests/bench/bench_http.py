"""HTTP writes, acknowledged when durable, beside servers that many would take instead; and how much log they cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from bench_client import post_all
from bench_daemon import WRITE, cpu_s, daemon
from bench_lines import Shape, recent_ns
from bench_servers import PEERS, Server, is_installed
from bench_servers import WRITE as PEER_WRITE
from bench_table import Bar, Bench

ROUNDS = 3
VICTORIA = PEERS[0].name
MOST_LOG = 0.4


@dataclass(frozen=True)
class Load:
    """One way to write."""

    lines: int
    connections: int
    full: int
    """Lines at scale 1."""
    bar: Bar | None = None
    """Against VictoriaMetrics."""

    def __str__(self) -> str:
        return f"HTTP, {self.lines:,} lines a body, {self.connections} connections"


LOADS = (
    Load(5_000, 4, 1_000_000, Bar(">=", 2)),
    Load(100, 32, 500_000, Bar(">=", 1)),
    Load(100, 4, 100_000),
)


@dataclass(frozen=True)
class Taken:
    """How fast a load was taken, and at what cost."""

    rate: float
    server_us: float
    """CPU time of the server for a line, in microseconds."""
    client_cores: float
    """CPU time of the client by wall time: near 1 it is the client that is measured."""


def http_writes(bench: Bench) -> None:
    """Lines a second, the best of some rounds; servers take turns, and all get the same bodies."""
    sizes = [bench.size(load.full, load.lines * load.connections) for load in LOADS]
    base_ns, loads = recent_ns(), []
    for load, size in zip(LOADS, sizes, strict=True):
        loads.append(Shape().bodies(size, load.lines, base_ns=base_ns))
    best: dict[tuple[str, Load], Taken] = {}
    for turn in range(ROUNDS):
        for name in ("ours", *(peer.name for peer in PEERS if is_installed(peer))):
            directory = bench.directory / f"http-{turn}-{name.split()[0].lower()}"
            for load, taken in zip(LOADS, _run(name, directory, loads), strict=True):
                known = best.get((name, load))
                if known is None or taken.rate > known.rate:
                    best[name, load] = taken
    for load in LOADS:
        _report(bench, load, {name: taken for (name, which), taken in best.items() if which == load})
    for peer in PEERS:
        if not is_installed(peer):
            bench.skip(peer.name, f"the package {peer.package} is not installed")


def _run(name: str, directory: Path, loads: Sequence[Sequence[bytes]]) -> list[Taken]:
    if name == "ours":
        with daemon(directory) as appliance:
            appliance.start()
            taken = _post_loads(appliance.http_port, WRITE, psutil.Process(appliance.pid), loads)
            rows = appliance.metric("lines_total")
            assert rows == sum(body.count(b"\n") + 1 for bodies in loads for body in bodies), f"{rows} rows"
            return taken
    (peer,) = (peer for peer in PEERS if peer.name == name)
    with Server(peer, directory) as server:
        taken = _post_loads(server.port, PEER_WRITE, server.process, loads)
        server.check_kept()
        return taken


def _post_loads(port: int, path: str, process: psutil.Process, loads: Sequence[Sequence[bytes]]) -> list[Taken]:
    found = []
    for load, bodies in zip(LOADS, loads, strict=True):
        start_s, server_s, client_s = time.perf_counter(), cpu_s(process), time.process_time()
        post_all(port, path, bodies, load.connections)
        took_s = time.perf_counter() - start_s
        lines = sum(body.count(b"\n") + 1 for body in bodies)
        used_us = (cpu_s(process) - server_s) / lines * 1e6
        found.append(Taken(lines / took_s, used_us, (time.process_time() - client_s) / took_s))
    return found


def _report(bench: Bench, load: Load, taken: dict[str, Taken]) -> None:
    ours = taken.pop("ours")
    note = f"server CPU {ours.server_us:.2f} us a line, client {ours.client_cores:.2f} cores"
    if not taken:
        bench.add(str(load), ours.rate, "lines/s", note=note)
    for name, peer in taken.items():
        beside = f"; beside it {peer.server_us:.2f} us, client {peer.client_cores:.2f} cores"
        bar = load.bar if name == VICTORIA else None
        what = f"{load}, against {name.split()[0].rstrip(',')}"
        bench.add(what, ours.rate, "lines/s", peer=peer.rate, peer_name=name, bar=bar, note=note + beside)


def log_size(bench: Bench) -> None:
    """Bytes written to the log for a byte of payload, by lines in a group; one connection, so a body is a group."""
    base_ns = recent_ns()
    for lines, bar in ((5_000, Bar("<=", MOST_LOG, of="value")), (1_000, Bar("<=", MOST_LOG, of="value")), (100, None)):
        bodies = Shape().bodies(bench.size(lines * 40, lines * 5), lines, base_ns=base_ns)
        with daemon(bench.directory / f"log-size-{lines}") as appliance:
            appliance.start()
            post_all(appliance.http_port, WRITE, bodies, connections=1)
            written = appliance.metric("wal_written_bytes_total")
            groups = appliance.metric("wal_frames_total")
        value = written / sum(map(len, bodies))
        note = f"{groups:,.0f} groups for {len(bodies):,} bodies"
        bench.add(f"log bytes for a payload byte, {lines:,} lines a group", value, "", bar=bar, note=note)
