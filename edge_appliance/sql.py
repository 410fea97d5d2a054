"""SQL over rows in memory and parts on disk: the only importer of DataFusion.

The text is judged first, since the engine computes constants while it plans (`core/query_bounds.py`). Then a query is
planned three times, a millisecond each. First against tables that only have columns, to learn which tables
it names, second against the same as base tables, to learn the columns and times it needs of each; both also refuse
everything that is not a query. Then one view of those tables is taken, tables are built from it that hold each key
once (`core/query_plan.py`), the pairs of its joins are bounded (`core/query_joins.py`), and the statement runs on them.

Names are case-sensitive as in line protocol. SQL lower-cases what is not quoted: `pump` is the table `pump`, and the
table `Pump` is written `"Pump"`.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import datafusion as df
import pyarrow as pa
from datafusion.catalog import CatalogProvider, SchemaProvider, Table

from edge_appliance.core import query_text
from edge_appliance.core.delivery import ColumnDefinition
from edge_appliance.core.interval import MAX_NS, Interval
from edge_appliance.core.query_bounds import MAKERS, PLAIN, Bounds, bounds_of, check_width
from edge_appliance.core.query_joins import JoinCosts, pairs_of, refuse_spread_lists
from edge_appliance.core.query_needs import Need, needs_of
from edge_appliance.core.query_plan import Sources, hot_partitions, plan_table, table_sql
from edge_appliance.core.query_types import (
    HI_COLUMN,
    LO_COLUMN,
    PART_COLUMN,
    file_schema,
    no_rows,
    portable,
    portable_schema,
)
from edge_appliance.core.view import TableView
from edge_appliance.errors import QueryError
from edge_appliance.metrics import Metrics
from edge_appliance.query_memory import MemoryGuard, Watch
from edge_appliance.query_ports import QueryAnswer, QuerySettings, ViewSource
from edge_appliance.view_files import PartLocator, ViewFiles

CATALOG: Final = "public"
SCHEMA: Final = "iox"
"""Catalog and schema under which clients of InfluxDB 3 look for tables."""
MAX_CONCURRENT: Final = 4
"""Queries at once; others wait for their turn within their timeout. They share one memory pool."""
SPILL_FACTOR: Final = 4
"""Disk that one query may use for what does not fit into memory, as a multiple of `query.memory_limit`."""

_ENGINE_SETTINGS: Final = {
    # Rows are filtered while a file is decoded: the ten newest of 3 M rows in half the CPU time.
    "datafusion.execution.parquet.pushdown_filters": "true",
    # Each footer being read takes an engine thread, which keeps memory of its own. With 32 at once, the default,
    # thirty scans of 300 files end at 970 MiB resident; with 2 at 245 MiB, in the same time.
    "datafusion.execution.meta_fetch_concurrency": "2",
    # Wrong minima where a part lacks the column (apache/datafusion 25147, seen in 55.0.0).
    "datafusion.optimizer.enable_aggregate_dynamic_filter_pushdown": "false",
    # A recursion that never ends is not bounded by its text.
    "datafusion.execution.enable_recursive_ctes": "false",
    # As joins, subqueries are seen by what bounds joins and finds needs.
    "datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery": "false",
}

_TICK_S: Final = 0.1
"""How often a waiting query looks at its deadline and at whether it was cancelled."""


class _Tables(SchemaProvider):
    """The tables of one database by name: those prepared for this query, and for all others their columns only."""

    def __init__(self, source: ViewSource, database: str, prepared: Mapping[str, Table]) -> None:
        self._source = source
        self._database = database
        self._prepared = prepared
        self._empty = df.SessionContext()
        self.columns: dict[str, tuple[ColumnDefinition, ...]] = {}
        """Columns of the tables that were asked for."""

    @property
    def table_names(self) -> list[str]:  # type: ignore[override]  # the binding reads an attribute
        return self._source.table_names(self._database)

    def table_exist(self, name: str) -> bool:
        return self._source.columns(self._database, name) is not None

    def table(self, name: str) -> Table | None:
        columns = self._source.columns(self._database, name)
        if columns is None:
            return None
        self.columns[name] = columns
        # Called on an engine thread, where nothing that waits for the engine may be called.
        return self._prepared.get(name) or Table(self._empty.read_batches([no_rows(columns)]))


class _Database(CatalogProvider):
    def __init__(self, tables: _Tables) -> None:
        self._tables = tables

    def schema_names(self) -> set[str]:
        return {SCHEMA}

    def schema(self, name: str) -> _Tables | None:  # type: ignore[override]  # a provider is as good as a Schema
        return self._tables if name == SCHEMA else None


@dataclass(frozen=True, slots=True)
class _Statement:
    """One statement on its way through the engine."""

    database: str
    sql: str
    params: Mapping[str, Any]
    bounds: Bounds
    deadline_s: float
    cancel: threading.Event
    memory: Watch


class SqlEngine:
    """Answers SQL over one source of views. Thread-safe; `run` blocks and belongs in a worker thread."""

    def __init__(
        self,
        source: ViewSource,
        part_files: PartLocator,
        view_dir: Path,
        settings: QuerySettings,
        metrics: Metrics,
        *,
        max_concurrent: int = MAX_CONCURRENT,
    ) -> None:
        self._source = source
        self._settings = settings
        self._metrics = metrics
        self._memory = MemoryGuard(settings.memory_limit_bytes)
        self._part_files = part_files
        self._files = ViewFiles(view_dir, part_files)
        self._slots = threading.BoundedSemaphore(max_concurrent)
        self._closed = threading.Event()
        # One pool object in the builder is the pool of every session made from it.
        self._spill_limit_mib = max(1, SPILL_FACTOR * settings.memory_limit_bytes // 2**20)
        spill_dir = view_dir / "spill"
        spill_dir.mkdir(exist_ok=True)
        self._runtime = (
            df.RuntimeEnvBuilder()
            .with_fair_spill_pool(settings.memory_limit_bytes)
            .with_disk_manager_specified(spill_dir)
        )
        self._read_only = df.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)

    def close(self) -> None:
        """Refuse new queries and end the running ones."""
        self._closed.set()

    def end_oldest(self) -> None:
        """End the query that has run longest."""
        self._memory.end_oldest()

    def run(
        self,
        database: str,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> QueryAnswer:
        """Answer one statement, or raise QueryError. Setting `cancel` ends it within a tenth of a second.

        `params` are the values of `$name` placeholders.
        """
        started_s = time.monotonic()
        values = {name.removeprefix("$"): value for name, value in (params or {}).items()}
        outcome = "ok"
        try:
            bounds, deadline_s = self._judged(database, sql, values), started_s + self._settings.timeout_s
            ended, watch = cancel or threading.Event(), self._memory.watch()
            statement = _Statement(database, sql, values, bounds, deadline_s, ended, watch)
            with self._turn(statement):
                watch.begin()
                return self._answer(statement)
        except QueryError as error:
            outcome = error.fault
            raise
        finally:
            self._metrics.queries.add(1, outcome)
            self._metrics.query_seconds.observe(time.monotonic() - started_s)

    def _judged(self, database: str, sql: str, values: Mapping[str, Any]) -> Bounds:
        if database not in self._source.databases():
            raise QueryError("not_found", f"database {database!r} does not exist")
        query_text.check_text(sql)
        return bounds_of(sql, values)

    @contextmanager
    def _turn(self, statement: _Statement) -> Iterator[None]:
        while not self._slots.acquire(timeout=_TICK_S):
            if time.monotonic() > statement.deadline_s:
                raise QueryError("unavailable", "too many queries are running, try again later")
            self._raise_if_ended(statement)
        try:
            yield
        finally:
            self._slots.release()

    def _raise_if_ended(self, statement: _Statement) -> None:
        if self._closed.is_set():
            raise QueryError("unavailable", "the appliance is stopping")
        if statement.cancel.is_set():
            raise QueryError("unavailable", "the query was cancelled")
        if time.monotonic() > statement.deadline_s:
            raise QueryError("timeout", f"the query did not finish within {self._settings.timeout_s:g} s")
        statement.memory.check()

    def _answer(self, statement: _Statement) -> QueryAnswer:
        with self._translated(statement), self._part_files.reading(), ExitStack() as held:
            needs, columns = self._needs(statement)
            view = self._source.view(statement.database, list(needs)) if needs else {}
            workshop = df.SessionContext(self._config(statement.bounds), self._runtime)
            rows: dict[str, int] = dict.fromkeys(("generate_series()", "range()"), statement.bounds.series_rows)
            prepared = {
                name: self._build(workshop, held, rows, view[name], columns[name], need, statement)
                for name, need in needs.items()
                if name in view
            }
            session, _ = self._session(statement.database, prepared, statement.bounds)
            frame = self._plan(session, statement)
            schema = portable_schema(frame.schema())
            self._raise_if_ended(statement)
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                self._check_joins(runner, session, frame, rows, statement)
                return runner.run(self._collect(frame, schema, statement))

    # Planning

    def _config(self, bounds: Bounds) -> df.SessionConfig:
        config = df.SessionConfig().with_default_catalog_and_schema(CATALOG, SCHEMA).with_information_schema(True)
        for key, value in _ENGINE_SETTINGS.items():
            config.set(key, value)
        return config.with_batch_size(bounds.batch_rows)

    def _session(
        self, database: str, prepared: Mapping[str, Table], bounds: Bounds = PLAIN
    ) -> tuple[df.SessionContext, _Tables]:
        session = df.SessionContext(self._config(bounds), self._runtime)
        # Whatever the reader of the text did not see, the engine does not have.
        for name in MAKERS - bounds.makers:
            session.deregister_udf(name)
        session.sql(f"SET datafusion.runtime.max_temp_directory_size = '{self._spill_limit_mib}M'").collect()
        tables = _Tables(self._source, database, prepared)
        session.register_catalog_provider(CATALOG, _Database(tables))
        for name in ("database", "current_schema"):
            session.register_udf(df.udf(lambda: pa.array([SCHEMA]), [], pa.utf8(), "immutable", name))
        return session, tables

    def _plan(self, session: df.SessionContext, statement: _Statement) -> df.DataFrame:
        return session.sql_with_options(statement.sql, self._read_only, param_values=dict(statement.params))

    def _needs(self, statement: _Statement) -> tuple[dict[str, Need], dict[str, tuple[ColumnDefinition, ...]]]:
        """What the statement reads of each table it names, and the columns these tables have."""
        check_width(statement.bounds, lambda name: len(self._source.columns(statement.database, name) or ()))
        session, tables = self._session(statement.database, {}, statement.bounds)
        self._plan(session, statement)
        columns = dict(tables.columns)
        if not columns:
            return {}, {}
        workshop = df.SessionContext(self._config(statement.bounds))
        bases: dict[str, Table] = {}
        for number, (name, defined) in enumerate(columns.items()):
            workshop.register_record_batches(f"t{number}", [[no_rows(defined)]])
            bases[name] = workshop.catalog(CATALOG).schema(SCHEMA).table(f"t{number}")
        session, _ = self._session(statement.database, bases, statement.bounds)
        plan = self._plan(session, statement).optimized_logical_plan()
        self._raise_if_ended(statement)
        needs = needs_of(plan, columns)
        if query_text.uses_now(statement.sql):
            # Planned again later, "now" will be later too: an upper bound made from it must not cut.
            slack_ns = int(self._settings.timeout_s * 1e9)
            for need in needs.values():
                need.bounds = Interval(need.bounds.lo, min(MAX_NS, need.bounds.hi + slack_ns))
        return needs, columns

    def _build(
        self,
        workshop: df.SessionContext,
        held: ExitStack,
        rows: dict[str, int],
        view: TableView,
        columns: tuple[ColumnDefinition, ...],
        need: Need,
        statement: _Statement,
    ) -> Table:
        """The table as the statement shall see it: each key once, nothing that it does not need.

        Adds the rows of its sources to `rows`.
        """
        shown = need.bounds.common(Interval(view.visible_from_ns, MAX_NS))
        plan = plan_table(view, shown)
        number = len(rows)
        sources = Sources(f"alone{number}", f"shared{number}", f"hot{number}")
        rows[sources.alone] = sum(part.rows for part in plan.alone)
        rows[sources.shared] = sum(shared.part.rows for shared in plan.shared)
        if plan.alone or plan.shared:
            parts = [*plan.alone, *(shared.part for shared in plan.shared)]
            check = functools.partial(self._raise_if_ended, statement)
            held.enter_context(self._part_files.held(parts, statement.deadline_s, check))
            alone, shared = held.enter_context(self._files.linked(plan.alone, plan.shared))
            schema = file_schema(columns)
            workshop.register_listing_table(sources.alone, alone, schema=schema)
            if plan.shared:
                labels = [(name, pa.int64()) for name in (PART_COLUMN, LO_COLUMN, HI_COLUMN)]
                workshop.register_listing_table(sources.shared, shared, labels, schema=schema)
        hot = hot_partitions(plan, columns, need.columns, statement.bounds.batch_rows)
        rows[sources.hot] = sum(batch.num_rows for half in hot for batch in half)
        workshop.register_record_batches(sources.hot, hot)
        return workshop.sql(table_sql(plan, columns, need.columns, shown, sources, view.visible_from_ns)).into_view()

    # Running

    def _check_joins(
        self,
        runner: asyncio.Runner,
        session: df.SessionContext,
        frame: df.DataFrame,
        rows: Mapping[str, int],
        statement: _Statement,
    ) -> None:
        """Refuse a statement whose joins would compare too many pairs of rows."""

        def number(asked: df.DataFrame) -> int:
            answer = runner.run(self._collect(asked, portable_schema(asked.schema()), statement))
            return int(answer.batches[0].column(0)[0].as_py() or 0)

        def count_rows(plan: df.LogicalPlan) -> int:
            counted = session.create_dataframe_from_logical_plan(plan)
            return number(counted.aggregate([], [df.functions.count_star().alias("rows")]))

        def count_pairs(plan: df.LogicalPlan) -> int:
            return number(pairs_of(plan, session.create_dataframe_from_logical_plan, df))

        plan = frame.optimized_logical_plan()
        refuse_spread_lists(plan)
        JoinCosts(rows, count_rows, count_pairs).check(plan)
        self._raise_if_ended(statement)

    async def _collect(self, frame: df.DataFrame, schema: pa.Schema, statement: _Statement) -> QueryAnswer:
        """All rows of the answer; ends the query at the deadline, when it is cancelled, and at either size limit."""
        batches: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        stream = frame.execute_stream()
        while (record := await self._next(stream, statement)) is not None:
            batch = portable(record.to_pyarrow(), schema)
            batches.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows > self._settings.max_rows:
                raise QueryError("too_large", f"the answer has more than {self._settings.max_rows:,} rows")
            if size_bytes > self._settings.memory_limit_bytes:
                limit_mib = self._settings.memory_limit_bytes / 2**20
                raise QueryError("too_large", f"the answer has more than {limit_mib:g} MiB")
        return QueryAnswer(schema, batches, rows)

    async def _next(self, stream: df.RecordBatchStream, statement: _Statement) -> df.RecordBatch | None:
        pull = asyncio.ensure_future(anext(stream, None))
        try:
            while not (await asyncio.wait({pull}, timeout=_TICK_S))[0]:
                self._raise_if_ended(statement)
            return pull.result()
        finally:
            # Cancelling drops the engine's future, which ends its tasks as soon as they next yield.
            pull.cancel()

    @contextmanager
    def _translated(self, statement: _Statement) -> Iterator[None]:
        try:
            yield
        except (QueryError, KeyboardInterrupt, SystemExit):
            raise
        # The engine raises bare Exception and ValueError, and a panic of it is not even an Exception.
        except BaseException as error:
            raise self._explained(str(error), statement) from error

    def _explained(self, message: str, statement: _Statement) -> QueryError:
        tables = self._source.table_names(statement.database)
        names = set(tables)
        if "No field named" in message:
            for table in tables:
                names.update(column.name for column in self._source.columns(statement.database, table) or ())
        return query_text.explain(message, names)
