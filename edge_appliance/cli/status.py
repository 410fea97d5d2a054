"""`edge-appliance status`: the daemon's own account of itself, for people or as JSON."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Final

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option
from edge_appliance.cli.daemon import Daemon, refusal
from edge_appliance.config_values import size_text
from edge_appliance.health import duration_text
from edge_appliance.metrics import PREFIX

EXAMPLES = """\
  edge-appliance status
  edge-appliance status --watch
  edge-appliance status --json | jq .metrics.edge_appliance_buffer_bytes"""

_TIMEOUT_S: Final = 10.0
_WATCH_S: Final = 2.0
_CLEAR: Final = "\033[H\033[2J"
"""What empties a terminal; elsewhere the accounts follow each other."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    parser.add_argument("--watch", action="store_true", help="show it anew every two seconds, until Ctrl-C")


def execute(arguments: argparse.Namespace) -> int:
    """Ask for the status and print it; a daemon that is still replaying answers, too."""
    daemon = Daemon(config.load(arguments.config, purpose="ask").http)
    if not arguments.watch:
        print(account(daemon, is_json=arguments.json))
        return Exit.OK
    while True:
        try:
            text = account(daemon, is_json=arguments.json)
        except CommandError as error:  # it is being restarted, perhaps
            text = str(error)
        print(f"{_CLEAR if sys.stdout.isatty() else ''}{text}", flush=True)
        time.sleep(_WATCH_S)


def account(daemon: Daemon, *, is_json: bool) -> str:
    """Return the daemon's account of itself."""
    with daemon.get("/api/v1/status", timeout_s=_TIMEOUT_S) as response:
        if response.status not in (http.client.OK, http.client.SERVICE_UNAVAILABLE):
            raise refusal(response)
        try:
            status = json.loads(response.read())
        except (ValueError, OSError, http.client.HTTPException) as error:
            raise CommandError(Exit.FAILED, f"{daemon.address} does not answer like edge-appliance") from error
    if not isinstance(status, dict) or "phase" not in status:
        raise CommandError(Exit.FAILED, f"{daemon.address} does not answer like edge-appliance")
    if is_json:
        return json.dumps(status, indent=2, ensure_ascii=False)
    rows = list(lines(status))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


_SOON_S: Final = 3_600
"""Beyond an hour a prediction is of no interest."""


def lines(status: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the human form; what the daemon did not send is left out."""
    held, degraded, metrics = str(status.get("held") or ""), status.get("degraded"), status.get("metrics")
    phase, sentence = str(status["phase"]), str(status.get("status") or "")
    if node := status.get("node"):
        yield "node", f"{node}, edge-appliance {status.get('version')}, up {status.get('up')}"
    # While running, the sentence is made of reasons and facts; the reasons get lines of their own here.
    facts = f": {sentence}" if sentence != "running" and not held and not degraded else ""
    yield "state", f"running{facts}" if phase == "running" else sentence or phase
    if held:
        yield "waiting", f"nothing is acknowledged: {held}"
    for key, reason in degraded.items() if isinstance(degraded, dict) else ():
        if str(reason) not in held:
            yield "degraded", f"{key}: {reason}"
    if isinstance(metrics, dict):
        numbers = _Numbers(metrics)
        yield from _intake(numbers)
        yield from _storage(numbers)


class _Numbers:
    """Metrics by short name; labelled ones are summed or shown label by label."""

    def __init__(self, metrics: Mapping[str, object]) -> None:
        self._metrics = metrics

    def labelled(self, name: str) -> dict[str, float]:
        value = self._metrics.get(PREFIX + name)
        if isinstance(value, dict):
            return {str(label): n for label, n in value.items() if isinstance(n, (int, float))}
        return {"": value} if isinstance(value, (int, float)) else {}

    def total(self, name: str) -> float:
        return sum(self.labelled(name).values())

    def count(self, name: str) -> str:
        return f"{self.total(name):,.0f}"

    def size(self, name: str) -> str:
        return size_text(int(self.total(name)))

    def by_label(self, name: str) -> str:
        parts = [f"{label} {n:,.0f}" for label, n in sorted(self.labelled(name).items(), key=lambda p: -p[1]) if n]
        return f" ({', '.join(parts)})" if parts else ""


def _intake(n: _Numbers) -> Iterator[tuple[str, str]]:
    connected = "connected" if n.total("broker_connected") else "not connected"
    yield "broker", connected + (", reading paused" if n.total("broker_read_paused") else "")
    yield "deliveries", n.count("deliveries_total") + n.by_label("deliveries_total")
    yield "lines", n.count("lines_total")
    yield "rejected", f"{n.count('rejected_lines_total')}{n.by_label('rejected_lines_total')}"
    yield "acked", f"{n.count('acked_total')}, redelivered {n.count('redelivered_total')}"
    if n.total("dropped_qos0_total"):
        yield "dropped", f"{n.count('dropped_qos0_total')} QoS 0 deliveries"
    yield "inbox", n.size("inbox_bytes")


def _storage(n: _Numbers) -> Iterator[tuple[str, str]]:
    limit = n.total("buffer_limit_bytes")
    share = f" of {size_text(int(limit))} ({n.total('buffer_bytes') / limit:.0%})" if limit else ""
    yield "buffer", f"{n.size('buffer_bytes')}{share}{_pressure(n)}, segments{n.by_label('segments') or ' 0'}"
    yield "log", f"{n.size('wal_bytes')} in {n.count('wal_files')} files, {n.count('wal_fsyncs_total')} syncs"
    commit = n.labelled("commit_seconds")
    if commit.get("count"):
        yield "commit", f"p50 {_milliseconds(commit['p50'])}, p99 {_milliseconds(commit['p99'])}"
    yield "parts", f"{n.count('parts')}{n.by_label('parts')}, {n.size('part_bytes')}, spool {n.size('spool_bytes')}"
    uploaded = f"{n.count('uploaded_parts_total')} parts ({n.size('uploaded_bytes_total')}) since the start"
    away = n.total("store_away_seconds")
    yield "store", uploaded + (f", takes none for {duration_text(away)}" if away else "")
    if n.total("cache_bytes") or n.total("fetched_parts_total"):
        yield "cache", f"{n.size('cache_bytes')}, {n.count('fetched_parts_total')} parts fetched for queries"
    if n.total("dropped_rows_total"):
        yield "lost", f"{n.count('dropped_rows_total')} rows, by spool.policy = drop-oldest"
    yield "dead letters", f"{n.count('dead_letters_total')}, {n.size('dead_letter_bytes')} on disk"
    if n.total("quarantine_files"):
        yield "quarantine", f"{n.count('quarantine_files')} files"
    if n.total("replay_seconds"):
        yield "replay", f"{n.count('replay_lines')} lines in {n.total('replay_seconds'):.1f} s"
    yield "memory", f"{n.size('resident_memory_bytes')} resident"


def _pressure(n: _Numbers) -> str:
    """What matters when the buffer fills up, or when less than its limit is in effect."""
    words = []
    if 0 < (effective := n.total("buffer_effective_limit_bytes")) < n.total("buffer_limit_bytes"):
        words.append(f"limit now {size_text(int(effective))}, the host is short of memory")
    if rate := n.total("buffer_rate_bytes"):
        words.append(f"grows by {size_text(int(rate))}/s")
        if (left_s := n.total("buffer_seconds_left")) < _SOON_S:
            words.append(f"full in {left_s:.0f} s")
    if pinned := n.total("buffer_pinned_bytes"):
        words.append(f"{size_text(int(pinned))} held by queries")
    if cool_downs := n.total("cool_downs_total"):
        words.append(f"was full {cool_downs:.0f} times, for {n.total('cool_down_seconds_total'):.0f} s")
    return "".join(f", {word}" for word in words)


def _milliseconds(seconds: float) -> str:
    return f"≤ {seconds * 1000:g} ms"
