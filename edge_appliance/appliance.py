"""Build, start, supervise, stop: the life of the process reads here from top to bottom."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import pyarrow.acero  # noqa: F401 - pyarrow loads it at its first grouping, which must not be after READY=1
import uvloop

from edge_appliance import __version__, durable, host
from edge_appliance.buffer import Buffer
from edge_appliance.committed import Committed
from edge_appliance.config import Config, describe
from edge_appliance.core.append import KERNEL, Appender
from edge_appliance.core.delivery import ArrivalClock
from edge_appliance.core.memory_plan import plan_memory
from edge_appliance.core.pressure import Policy
from edge_appliance.core.route import route_table
from edge_appliance.core.schema import load_schema
from edge_appliance.dead_letters import DEFAULT_MAX_BYTES, DeadLetters
from edge_appliance.errors import DiskError
from edge_appliance.health import Health, Phase
from edge_appliance.http.app import HttpServer, build_app, serve
from edge_appliance.http.control import Control
from edge_appliance.http.dependencies import HttpDependencies, HttpLimits
from edge_appliance.inbox import Inbox
from edge_appliance.ingest import Ingest
from edge_appliance.journal import report_suppressed
from edge_appliance.metrics import Metrics
from edge_appliance.mqtt_settings import settings_from
from edge_appliance.mqtt_source import MqttSource
from edge_appliance.parquet_file import encode_parquet
from edge_appliance.paths import Paths, control_path
from edge_appliance.persist import Persister
from edge_appliance.reconcile import open_catalog
from edge_appliance.relief import Relief
from edge_appliance.reloader import Reloader
from edge_appliance.reporter import Reporter
from edge_appliance.restart import LogSettings, Restart
from edge_appliance.retry import Retry
from edge_appliance.room import Room, settings_of
from edge_appliance.sql import SqlEngine
from edge_appliance.storage import Storage, reach_store
from edge_appliance.systemd import Notifier, Station, Watchdog
from edge_appliance.wal import Wal

_log = logging.getLogger(__name__)

FILE_MASK: Final = 0o027
"""Rows and topics are nobody's business but the service's user and group."""
SWITCH_INTERVAL_S: Final = 0.0005
"""Between threads that run Python: with the default 5 ms a busy worker holds up each acknowledgement."""
GC_THRESHOLD: Final = (200_000, 20, 100)
"""Rows are not cyclic garbage: with the default of 700 objects the collector walks them again and again."""
TICK_S: Final = 0.25
STATION_LIMIT_S: Final = 60.0
MQTT_LIMIT_S: Final = 120.0
"""Twice what a connection that fails and the pause behind it take."""
SLICE_LIMIT_S: Final = 600.0
"""For one slice of a table, sorted, written and synced on the slowest card; beyond it the worker hangs."""
GROUP_END_S: Final = 15.0
"""How long a stop waits for the group in work."""
QUERY_GRACE_S: Final = 5.0
"""Beyond its own time limit, how long a query is waited for."""
MEMORY_DRAIN_S: Final = 30.0
"""How long a stop without a log waits for its rows to become parts."""


def run(config: Config, load: Callable[[], Config]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. `load` reads the files anew. Raises EdgeErrors."""
    os.umask(FILE_MASK)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLD)
    host.raise_open_files_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config, load))


async def _run(config: Config, load: Callable[[], Config]) -> int:
    appliance = Appliance(config, load, asyncio.get_running_loop())
    try:
        return await appliance.run()
    finally:
        appliance.close()


class Appliance:
    """All parts of one running appliance. Built without touching the network; `run` does the rest."""

    def __init__(self, config: Config, load: Callable[[], Config], loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._loop = loop
        self._stop = asyncio.Event()
        self._is_stopping = threading.Event()
        self._exit_code = 0
        self._threads: list[threading.Thread] = []
        self.metrics = Metrics()
        self.health = Health()
        self._notifier = Notifier()
        self._loop_station = Station("event loop", STATION_LIMIT_S)
        self._ingest_station = Station("ingest", STATION_LIMIT_S)
        self._mqtt_station = Station("MQTT", MQTT_LIMIT_S)
        self._worker_stations = [
            Station(f"persist worker {number}", SLICE_LIMIT_S) for number in range(config.persist.workers)
        ]
        stations = (self._loop_station, self._ingest_station, self._mqtt_station, *self._worker_stations)
        self._watchdog = Watchdog(self._notifier, stations)
        self._paths = Paths(config.node.data_dir)
        self._paths.create()
        self._lock = durable.lock_directory(self._paths.root)
        self._store = reach_store(config.store, self.health)
        self._catalog = open_catalog(self._paths, self._store, config.node.id, self.health)
        self._clock = ArrivalClock()
        self._build_core()
        self._build_ingest()
        self._build_sources()
        self._reloader = Reloader(config, load, self._apply, self._notifier, self.health)
        retry = Retry(self._dead_letters, self._inbox, self._clock, lambda: route_table(self._config.mqtt.routes))
        self._control = Control(control_path(os.environ, self._paths.root), self._reloader.ask, retry)
        self._reporter = Reporter(self._notifier, self.health, self.metrics, self._buffer, self._loop_station)

    def _build_core(self) -> None:
        """Wire what stores and finds rows."""
        config, paths, metrics, health = self._config, self._paths, self.metrics, self.health
        memory = config.memory
        self._plan = plan_memory(
            host.usable_memory_bytes(),
            memory.buffer_limit_bytes,
            memory.inbox_limit_bytes,
            config.query.memory_limit_bytes,
            config.persist.workers,
        )
        metrics.kernel_compiled.set(KERNEL == "compiled")
        _log.info("line protocol kernel: %s", KERNEL)
        state = self._catalog.state
        schema = load_schema(state.definitions)
        self._buffer = Buffer(schema, state.parts, config.memory.buffer_limit_bytes, config.database_names)
        self._appender = Appender(schema)
        self._wal = Wal(
            paths.wal,
            node=state.node,
            incarnation=state.incarnation,
            sync=config.wal.sync != "never",
            clock_ns=time.time_ns,
        )
        self._inbox = Inbox(
            config.memory.inbox_limit_bytes, config.wal.group_delay_s, metrics, self._loop.call_soon_threadsafe
        )
        self._dead_letters = DeadLetters(paths.dead_letters, DEFAULT_MAX_BYTES, metrics)
        self._storage = Storage(config, paths, self._store, self._catalog, self._buffer, health, metrics)
        self._persister = Persister(
            self._plan.jobs,
            paths.spool,
            paths.quarantine,
            self._catalog,
            self._buffer,
            self._wal,
            health,
            metrics,
            stations=self._worker_stations,
            on_parts=self._storage.take,
            slice_bytes=self._plan.slice_bytes,
        )
        self._sql = SqlEngine(self._buffer, self._storage.files, paths.view, config.query, metrics)

    def _build_ingest(self) -> None:
        """Wire the thread between inbox, log and buffer."""
        config, metrics = self._config, self.metrics
        policy = Policy(config.memory.horizon_s, config.segment.max_age_s, self._plan.jobs)
        relief = Relief(
            self._buffer,
            policy,
            config.memory.host_reserve_bytes,
            metrics,
            self.health,
            time.monotonic(),
            end_oldest_query=self._sql.end_oldest,
        )
        self._room = Room(
            settings_of(config), self._buffer, relief, lambda: self._persister.failure, self._storage.uploader.lack
        )
        self._ingest = Ingest(
            self._inbox,
            self._buffer,
            self._appender,
            self._dead_letters,
            self.health,
            metrics,
            self._ingest_station,
            self._room,
            on_committed=lambda committed: self._post(self._tell, committed),
            on_sealed=self._persister.submit,
            on_set_aside=self._persister.submit_set_aside,
            generation=lambda: self._catalog.state.generation,
        )

    def _build_sources(self) -> None:
        """Wire what rows and questions come from."""
        config, health, metrics = self._config, self.health, self.metrics
        self._mqtt = MqttSource(
            settings_from(config),
            route_table(config.mqtt.routes),
            self._inbox,
            self._clock,
            self._catalog.state.filters,
            lambda filters: _ignore(self._catalog.save_filters(filters)),
            metrics,
            health,
            self._mqtt_station,
        )
        self._inbox.know_window(lambda: self._mqtt.window)
        token = config.http.token
        self._app = build_app(
            HttpDependencies(
                inbox=self._inbox,
                clock=self._clock,
                sql=self._sql,
                databases=self._buffer.databases,
                table_names=self._buffer.table_names,
                columns=self._buffer.columns,
                parts=self._buffer.parts,
                maintenance=self._storage.plan,
                encode_parquet=encode_parquet,
                health=health,
                metrics=metrics,
                version=__version__,
                node=config.node.id,
                started_ns=time.time_ns(),
                token=None if token is None else token.reveal(),
                status_details=lambda: describe(self._config),
                limits=HttpLimits(
                    max_body_bytes=config.http.max_body_bytes, query_s=config.query.timeout_s + QUERY_GRACE_S
                ),
            )
        )
        metrics.buffer_bytes.read_from(lambda: self._buffer.size_bytes)
        metrics.buffer_limit.set(config.memory.buffer_limit_bytes)
        metrics.rss_bytes.read_from(host.rss_bytes)
        metrics.ready.read_from(lambda: health.is_ready)

    # The life of the process

    async def run(self) -> int:
        """Serve until asked to stop; returns the exit code."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signal_number, self._ask_to_stop)
        self._loop.add_signal_handler(signal.SIGHUP, self._reloader.ask)
        report_suppressed(self.metrics.suppressed_log_lines.add)
        self._say_budgets()
        self.health.enter(Phase.REPLAYING)
        server = await serve(self._app, self._config.http.host, self._config.http.port)
        await self._control.serve()
        reporter = self._loop.create_task(self._reporter.run())
        try:
            if await asyncio.to_thread(self._recover):
                await self._serve()
        finally:
            self._is_stopping.set()
            self.health.enter(Phase.STOPPING)
            self._notifier.stopping()
            await self._control.stop()
            await self._stop_sources(server)
            reporter.cancel()
        return self._exit_code

    async def _serve(self) -> None:
        """Take deliveries until asked to stop."""
        self._start_thread("ingest", self._ingest.run)
        source = self._loop.create_task(self._mqtt.run(), name="the MQTT source")
        source.add_done_callback(self._check_task)
        gc.collect()
        gc.freeze()
        self.health.enter(Phase.RUNNING)
        self._notifier.ready(self.health.status_line())
        self._watchdog.start()
        reloads = self._loop.create_task(self._reloader.run(), name="the reloader")
        reloads.add_done_callback(self._check_task)
        _log.info("ready: http://%s:%d", *self._config.http.listen, extra={"event": "ready"})
        await self._stop.wait()
        reloads.cancel()

    def _recover(self) -> bool:
        """Replay the log and open it for appending; False when asked to stop meanwhile."""
        wal = self._config.wal
        restart = Restart(
            LogSettings(wal.enabled, wal.sync, self._paths.quarantine),
            self._wal,
            self._catalog,
            self._buffer,
            self._appender,
            self._persister,
            self._ingest,
            self._clock,
            self.health,
            self.metrics,
            self._is_stopping.is_set,
        )
        is_open = restart.run()
        if is_open:
            self._storage.start()
        return is_open

    def _apply(self, config: Config) -> None:
        """Take over a reloaded configuration, in which only live keys differ."""
        self._config = config
        logging.getLogger().setLevel(config.log.level.upper())
        self._room.settings = settings_of(config)
        self._buffer.configure(config.database_names)
        self._mqtt.apply(settings_from(config), route_table(config.mqtt.routes))

    # Supervision

    def _start_thread(self, name: str, body: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                body()
            except Exception:  # top of a thread: without it nothing can be promised, so the process ends
                _log.critical("the %s thread failed", name, exc_info=True)
                self._post(self._fail)

        thread = threading.Thread(target=guarded, name=name)
        self._threads.append(thread)
        thread.start()

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.critical("%s failed", task.get_name(), exc_info=error)
            self._fail()

    def _fail(self) -> None:
        self._exit_code = 1
        self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._is_stopping.set()
        self._stop.set()

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run `callback` on the event loop; after the loop's end nobody is left to be told."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            if not self._is_stopping.is_set():
                raise

    def _tell(self, committed: Committed) -> None:
        """Acknowledge a durable group: the only place from which acks go out."""
        self._mqtt.acknowledge(committed.acks)
        for on_done, result in committed.results:
            on_done(result)

    # The stop

    async def _stop_sources(self, server: HttpServer) -> None:
        """Stop reading, finish the group in work, send its acks, disconnect."""
        self._mqtt.pause_for_stop()
        self._ingest.stop()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, GROUP_END_S)
        await asyncio.sleep(0)  # the last group's acks were posted before its thread ended
        await self._mqtt.stop()
        await server.stop()

    def close(self) -> None:
        """Release threads, files and the lock; what is not persisted is in the log."""
        self._watchdog.stop()
        if not self._config.wal.enabled:
            self._ingest.seal()
            self._persister.drain(MEMORY_DRAIN_S)
        self._persister.close()
        self._storage.close()
        self._wal.close()
        try:
            self._dead_letters.close()
        except DiskError as error:  # the rest must be closed all the same
            _log.warning("%s; the last rejected lines may be lost in a power cut", error)
        self._sql.close()
        self._catalog.close()
        self._lock.release()
        self._notifier.close()

    def _say_budgets(self) -> None:
        """Print what memory goes to, so that the figures in effect are in the journal."""
        _log.info("memory: %s; wal.max_bytes %d MiB", self._plan, self._config.wal.max_bytes >> 20)


def _ignore(outcome: object) -> None:
    """Let a future go whose failure the next connect repairs."""
