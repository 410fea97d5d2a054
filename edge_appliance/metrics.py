"""Every number the appliance exports, declared in one place and rendered as Prometheus text or a plain dict.

Counters are bumped from several threads; an addition may not be lost, so each metric has a lock.
Labels are few and closed (reason, route, cause): never a topic, a series or a client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

PREFIX: Final = "edge_appliance_"
MAX_LABEL_SETS: Final = 500
"""Label sets of one metric; further ones are counted under `other`, so that input cannot grow the export."""


class Counter:
    """A number that only grows, by label set."""

    kind: Final = "counter"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, amount: float = 1, *label_values: str) -> None:
        """Add `amount` to the label set named by `label_values`, in the order of `labels`."""
        with self._lock:
            if label_values not in self._values and len(self._values) >= MAX_LABEL_SETS:
                label_values = ("other",) * len(self.labels)
            self._values[label_values] = self._values.get(label_values, 0) + amount

    def value(self, *label_values: str) -> float:
        """Current value of one label set; 0 when it was never counted."""
        return self._values.get(label_values, 0)

    def samples(self) -> list[tuple[tuple[str, ...], float]]:
        """All label sets with their values, ordered by label values."""
        with self._lock:
            return sorted(self._values.items())


class Gauge:
    """A number that goes up and down: set by its owner, or read from it at export."""

    kind: Final = "gauge"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}
        self._read: Callable[[], float] | None = None

    def set(self, value: float, *label_values: str) -> None:
        """Set the value of one label set."""
        self._values[label_values] = value

    def read_from(self, read: Callable[[], float]) -> None:
        """Ask `read` for the value at each export; it must be quick and must not raise."""
        self._read = read

    def replace(self, values: Iterable[tuple[tuple[str, ...], float]]) -> None:
        """Replace all label sets at once."""
        self._values = dict(values)

    def value(self, *label_values: str) -> float:
        """Current value of one label set; 0 when it was never set."""
        if self._read is not None and not label_values:
            return self._read()
        return self._values.get(label_values, 0)

    def samples(self) -> list[tuple[tuple[str, ...], float]]:
        """All label sets with their values, ordered by label values."""
        if self._read is not None:
            return [((), self._read())]
        return sorted(self._values.items())


class Histogram:
    """Durations in seconds by fixed upper bounds, with sum and count."""

    kind: Final = "histogram"
    BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

    def __init__(self, name: str, help_text: str) -> None:
        self.name = name
        self.help_text = help_text
        self._lock = threading.Lock()
        self._counts = [0] * (len(self.BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.count = 0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        slot = next((i for i, bound in enumerate(self.BOUNDS_S) if seconds <= bound), len(self.BOUNDS_S))
        with self._lock:
            self._counts[slot] += 1
            self.sum_s += seconds
            self.count += 1

    def quantile(self, share: float) -> float:
        """Upper bound in seconds of the bucket that holds the `share` quantile; 0 when nothing was counted."""
        wanted, seen = share * self.count, 0
        for bound, count in zip(self.BOUNDS_S, self._counts, strict=False):
            seen += count
            if seen >= wanted and seen:
                return bound
        return self.BOUNDS_S[-1] if self.count else 0.0

    def buckets(self) -> list[tuple[str, int]]:
        """Cumulative counts by upper bound, the last one `+Inf`."""
        with self._lock:
            total, rows = 0, []
            for bound, count in zip((*map(str, self.BOUNDS_S), "+Inf"), self._counts, strict=True):
                total += count
                rows.append((bound, total))
            return rows


Metric = Counter | Gauge | Histogram


class Metrics:
    """The appliance's numbers. One object per process, handed to whoever counts."""

    def __init__(self) -> None:
        c, g, h = Counter, Gauge, Histogram
        # Intake
        self.deliveries = c("deliveries_total", "Deliveries read from the transport.", ["source"])
        self.delivery_bytes = c("delivery_bytes_total", "Payload bytes of those deliveries.", ["source"])
        self.unprotected = c("unprotected_deliveries_total", "QoS 0 deliveries, by route.", ["route"])
        self.dropped_qos0 = c("dropped_qos0_total", "QoS 0 deliveries dropped beyond their inbox share.", ["route"])
        self.lines = c("lines_total", "Accepted lines.")
        self.rejected = c("rejected_lines_total", "Rejected lines, by reason.", ["reason"])
        self.sanitised = c("sanitised_payloads_total", "Payloads cleaned of a byte-order mark or NUL bytes.")
        self.non_finite = c("non_finite_fields_total", "Field values nan or inf that were dropped.")
        self.tag_collisions = c("tag_collisions_total", "Payload tags that beat a route tag.")
        self.ignored = c("ignored_deliveries_total", "Retained messages that an MQTT 3.1.1 broker replayed, not read.")
        self.redelivered = c("redelivered_total", "Deliveries that the log already held.")
        self.clock_unset = c("clock_unset_total", "Deliveries that arrived before the host clock was set.")
        self.kernel_compiled = g("kernel_compiled", "1 when lines are read by the compiled kernel, 0 by the reference.")
        self.inbox_bytes = g("inbox_bytes", "Payload bytes waiting for the ingest thread.")
        # Acknowledgements and the broker
        self.acked = c("acked_total", "PUBACKs sent.")
        self.stale_acks = c("stale_acks_total", "Acks dropped because their connection had ended.")
        self.broker_connected = g("broker_connected", "1 while connected with all filters granted.")
        self.broker_connects = c("broker_connects_total", "Connections accepted by the broker.")
        self.session_lost = c("session_lost_total", "Reconnects at which the broker had forgotten the session.")
        self.read_paused = g("broker_read_paused", "1 while PUBLISH data is not read, for want of inbox room.")
        self.granted_qos = g("granted_qos", "QoS granted by the broker, by filter.", ["filter"])
        self.status_dropped = c("status_publish_dropped_total", "Own status messages dropped while unconnected.")
        # Log
        self.groups = c("wal_groups_total", "Groups committed.", ["closed_by"])
        self.wal_frames = c("wal_frames_total", "Frames written to the log.")
        self.wal_written = c("wal_written_bytes_total", "Bytes written to the log, padding included.")
        self.wal_fsyncs = c("wal_fsyncs_total", "fdatasync calls on the log.")
        self.wal_failures = c("wal_failures_total", "Failed writes or syncs of the log.")
        self.wal_bytes = g("wal_bytes", "Bytes of all WAL files.")
        self.wal_files = g("wal_files", "Number of WAL files.")
        self.wal_damaged = c("wal_damaged_records_total", "Damaged records moved to quarantine at replay.")
        self.wal_skipped = c("wal_skipped_records_total", "Records of unknown type that replay skipped.")
        self.commit_seconds = h("commit_seconds", "Time from taking a group to its durable mark.")
        self.fsync_seconds = h("fsync_seconds", "Time of one fdatasync of the log.")
        self.replay_seconds = g("replay_seconds", "Time the last replay took.")
        self.replay_lines = g("replay_lines", "Lines the last replay read.")
        # Buffer, persist, store
        self.buffer_bytes = g("buffer_bytes", "Bytes of rows and series held in memory.")
        self.buffer_limit = g("buffer_limit_bytes", "Limit of the buffer.")
        self.buffer_effective_limit = g("buffer_effective_limit_bytes", "Limit that the host's free memory allows now.")
        self.buffer_pinned = g("buffer_pinned_bytes", "Bytes that are persisted and that queries still read.")
        self.buffer_rate = g("buffer_rate_bytes", "Bytes by which the buffer grows in a second, averaged over 30 s.")
        self.buffer_seconds_left = g("buffer_seconds_left", "Seconds until the limit in effect at that rate.")
        self.cool_downs = c("cool_downs_total", "Times that intake stopped because the buffer was full.")
        self.cool_down_seconds = c("cool_down_seconds_total", "Time for which it was stopped.")
        self.segments = g("segments", "Segments in memory, by state.", ["state"])
        self.persisted_rows = c("persisted_rows_total", "Rows written to parts.")
        self.set_asides = c("set_asides_total", "Times that rows of the open segment were persisted early.")
        self.persist_failures = c("persist_failures_total", "Persist jobs that failed and will be tried again.")
        self.persist_seconds = h("persist_seconds", "Time of one segment's persist.")
        self.parts = g("parts", "Live parts, by state.", ["state"])
        self.spool_bytes = g("spool_bytes", "Bytes of parts that the store does not have yet.")
        self.part_bytes = g("part_bytes", "Bytes of all live parts.")
        self.cache_bytes = g("cache_bytes", "Bytes of local copies of stored parts.")
        self.uploaded_parts = c("uploaded_parts_total", "Parts that the store took.")
        self.uploaded_bytes = c("uploaded_bytes_total", "Bytes of those parts.")
        self.upload_failures = c("upload_failures_total", "Attempts to upload a part that failed.")
        self.upload_seconds = h("upload_seconds", "Time of one upload.")
        self.fetched_parts = c("fetched_parts_total", "Parts fetched from the store for queries.")
        self.fetched_bytes = c("fetched_bytes_total", "Bytes of those parts.")
        self.store_away = g("store_away_seconds", "How long the store has not taken parts; 0 while it does.")
        self.dropped_parts = c("dropped_parts_total", "Parts lost by spool.policy = drop-oldest.")
        self.dropped_rows = c("dropped_rows_total", "Rows of those parts.")
        self.merges = c("merges_total", "Merges of parts.")
        self.merged_parts = c("merged_parts_total", "Parts that were merged into others.")
        self.merged_bytes = c("merged_bytes_total", "Bytes of those parts.")
        self.merge_failures = c("merge_failures_total", "Merges that failed and will be tried again.")
        self.merge_seconds = h("merge_seconds", "Time of one merge.")
        self.expired_parts = c("expired_parts_total", "Parts deleted by retention.")
        self.expired_rows = c("expired_rows_total", "Rows of those parts.")
        self.gone_parts = g("gone_parts", "Parts that are no more, and whose object in the store is still there.")
        self.dead_letters = c("dead_letters_total", "Rejected lines kept on disk.")
        self.dead_letters_dropped = c("dead_letters_dropped_total", "Oldest dead letters dropped at the cap.")
        self.dead_letter_bytes = g("dead_letter_bytes", "Bytes of kept dead letters.")
        self.quarantine_files = g("quarantine_files", "Files in quarantine.")
        # Queries, HTTP, process
        self.queries = c("queries_total", "SQL queries, by outcome.", ["outcome"])
        self.query_seconds = h("query_seconds", "Time of one SQL query.")
        self.http_requests = c("http_requests_total", "HTTP requests, by path and status.", ["path", "status"])
        self.suppressed_log_lines = c("suppressed_log_lines_total", "Journal lines withheld by the rate limit.")
        self.loop_lag = h("loop_lag_seconds", "How late the event loop's timer fired.")
        self.degraded = g("degraded", "1 for each reason the appliance is degraded.", ["reason"])
        self.ready = g("ready", "1 once replay has finished and everything is served.")
        self.rss_bytes = g("resident_memory_bytes", "Resident memory of the process.")

    def all(self) -> list[Metric]:
        """Every metric, in the order of declaration."""
        return list(vars(self).values())

    def render(self) -> str:
        """Prometheus text exposition format 0.0.4."""
        lines: list[str] = []
        for metric in self.all():
            name = PREFIX + metric.name
            lines += [f"# HELP {name} {metric.help_text}", f"# TYPE {name} {metric.kind}"]
            if isinstance(metric, Histogram):
                lines += [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in metric.buckets()]
                lines += [f"{name}_sum {metric.sum_s:.6f}", f"{name}_count {metric.count}"]
            else:
                lines += [f"{name}{_braces(metric.labels, values)} {_number(n)}" for values, n in metric.samples()]
        return "\n".join(lines) + "\n"

    def snapshot(self) -> dict[str, object]:
        """The same numbers by the same names, for `status --json`; labelled ones are objects by label value."""
        result: dict[str, object] = {}
        for metric in self.all():
            name = PREFIX + metric.name
            if isinstance(metric, Histogram):
                result[name] = {
                    "count": metric.count,
                    "sum": round(metric.sum_s, 6),
                    "p50": metric.quantile(0.5),
                    "p99": metric.quantile(0.99),
                }
            elif metric.labels:
                result[name] = {",".join(values): _plain(n) for values, n in metric.samples()}
            else:
                result[name] = _plain(metric.value())
        return result


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _number(number: float) -> str:
    return str(_plain(number))


def _braces(labels: Sequence[str], values: Sequence[str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{k}="{_escape(v)}"' for k, v in zip(labels, values, strict=True)) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
