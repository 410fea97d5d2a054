"""What a rejected line costs beside an accepted one: a flood of bad lines is not an attack."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
from bench_append import BODY_LINES, GROUP_LINES, ROUNDS, AppendStep, grouped
from bench_client import post_all
from bench_daemon import WRITE, cpu_s, daemon
from bench_lines import Shape, joined, recent_ns
from bench_table import Bar, Bench, cpu_seconds

MOST_COST = Bar("<=", 1.1)
"""As a multiple of an accepted line's; the tenth is what the rounds differ by."""
ACCEPTED = "an accepted line"

BAD: dict[str, Callable[[bytes], bytes]] = {
    "a bad number in the last field": lambda line: line.replace(b",ok=t ", b",ok=1.2.3 ").replace(
        b",ok=f ", b",ok=1.2.3 "
    ),
    "another type than the column's": lambda line: line.replace(b"i,load", b",load"),
    "text behind a string": lambda line: line.replace(b",ok=", b',ok="yes"'),
    "no fields": lambda line: line.split(b" ", 1)[0],
    "a bad time": lambda line: line + b"x",
    "a time out of range": lambda line: line + b"000",
    "no measurement": lambda line: line[line.index(b",") :],
    "noise": lambda line: bytes(33 + byte * 7 % 90 for byte in line),
}
"""A good line of the bench made bad."""
NO_TEXT = b"\xff\xfe"
"""Ends a payload that is no UTF-8, which is rejected as a whole."""


def rejects(bench: Bench) -> None:
    """Cost of a rejected line over that of an accepted one: in the append step, and over HTTP to the dead letters."""
    _in_process(bench)
    _over_http(bench)


def _in_process(bench: Bench) -> None:
    good = Shape().lines(bench.size(100_000, 5_000))
    kinds = {name: [spoil(line) for line in good] for name, spoil in BAD.items()}
    accepted_ns = _cost_ns(good, len(good))
    bench.add("append: " + ACCEPTED, accepted_ns, "ns")
    for name, lines in kinds.items():
        value = _cost_ns(lines, 0)
        bench.add(f"append: rejected for {name}", value, "ns", peer=accepted_ns, peer_name=ACCEPTED, bar=MOST_COST)
    no_text = [line + NO_TEXT if i % BODY_LINES == BODY_LINES - 1 else line for i, line in enumerate(good)]
    value = _cost_ns(no_text, 0)
    bench.add("append: in a payload that is no text", value, "ns", peer=accepted_ns, peer_name=ACCEPTED, bar=MOST_COST)
    names = list(kinds)
    mixed = [kinds[names[i % len(names)]][i] if i % 2 else line for i, line in enumerate(good)]
    value = _cost_ns(mixed, len(good) // 2)
    bench.add("append: every other line bad, a line", value, "ns", peer=accepted_ns, peer_name=ACCEPTED, bar=MOST_COST)


def _cost_ns(lines: list[bytes], accepted: int) -> float:
    """CPU time of a line, when all series and columns are known."""
    groups = grouped(joined(lines, BODY_LINES), GROUP_LINES // BODY_LINES)
    known = grouped(Shape().bodies(1_000, BODY_LINES, first=10**7), 1)

    def run() -> float:
        step, taken = AppendStep(), list[int]()
        step.append(known)
        took_s = cpu_seconds(lambda: taken.append(step.append(groups)))
        assert taken == [accepted], f"{taken} lines were accepted, not {accepted}"
        return took_s

    return min(run() for _ in range(ROUNDS)) / len(lines) * 1e9


def _over_http(bench: Bench) -> None:
    """The same end to end: parsed, kept as dead letters or logged, answered; by CPU of the process and by time."""
    good = Shape().lines(bench.size(100_000, 5_000), base_ns=recent_ns())
    names = list(BAD)
    bad = [BAD[names[i // BODY_LINES % len(names)]](line) for i, line in enumerate(good)]
    mixed = [bad[i] if i % 2 else line for i, line in enumerate(good)]
    directory = bench.directory / "rejects"
    results = {name: _post(directory / name, lines) for name, lines in (("good", good), ("bad", bad), ("mixed", mixed))}
    cpu_us, took_us = results["good"]
    bench.add(f"HTTP: {ACCEPTED}, CPU of the process", cpu_us, "us")
    bench.add(f"HTTP: {ACCEPTED}, time", took_us, "us")
    for name, what in (("bad", "a rejected line"), ("mixed", "every other line bad, a line")):
        cpu, took = results[name]
        bench.add(f"HTTP: {what}, CPU of the process", cpu, "us", peer=cpu_us, peer_name=ACCEPTED, bar=MOST_COST)
        bench.add(f"HTTP: {what}, time", took, "us", peer=took_us, peer_name=ACCEPTED)


def _post(directory: Path, lines: list[bytes]) -> tuple[float, float]:
    """Microseconds of CPU and of time for a line, in bodies of 100 lines on eight connections."""
    with daemon(directory) as appliance:
        appliance.start()
        post_all(appliance.http_port, WRITE, Shape().bodies(1_000, BODY_LINES, base_ns=recent_ns()), 1)
        process = psutil.Process(appliance.pid)
        start_s, before_s = time.perf_counter(), cpu_s(process)
        post_all(appliance.http_port, WRITE, joined(lines, BODY_LINES), 8, taken=(204, 400))
        took_s, used_s = time.perf_counter() - start_s, cpu_s(process) - before_s
        seen = appliance.metric("lines_total") + appliance.metric("rejected_lines_total")
        assert seen == len(lines) + 1_000, f"{seen} lines were counted"
    return used_s / len(lines) * 1e6, took_s / len(lines) * 1e6
