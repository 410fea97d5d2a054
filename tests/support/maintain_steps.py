"""A process that is killed at each step of retention, merge and deletion, one life after the other.

    python maintain_steps.py DIRECTORY

Every life is a forked child over its own copy of the same data, which sends itself SIGKILL at its n-th step: a sync, a
rename, a link, a removal, or the commit of the catalog, before and after. A second child then starts over what is
left, compares the rows, carries on to the end, and looks for files that nobody lists. Prints the number of kills.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from merge_world import CLOSED_NS, MergeWorld
from part_makers import DAY, write_rows

from edge_appliance.catalog_file import Transaction
from edge_appliance.config_maintain import DatabaseSettings
from edge_appliance.core.parts import part_key, part_name
from edge_appliance.spool import clean_spool

RULES = DatabaseSettings("edge", 9 * 86_400 * 10**9, None)
OLD = DAY - dt.timedelta(days=30)
STEPS_MAX = 500
KEPT = sorted([*range(1, 7), *range(11, 17), 7_000])


def build(directory: Path) -> None:
    """Six stored and six spooled parts of two tables, each key in two of them; and a date that is due."""
    directory.mkdir()
    world = MergeWorld(directory)
    for base, is_stored in ((0, True), (10, False)):
        for n in range(1, 7):
            rows = [{"at": n, "site": "a", "v": base + n}, *([{"at": n - 1, "site": "a", "v": base + n - 1}] * (n > 1))]
            world.add(write_rows(world.spool, base + n, rows, table=f"t{base}"), is_stored=is_stored)
    world.add(write_rows(world.spool, 20, [{"at": 1, "v": 1}], date=OLD, table="old"), is_stored=True)
    world.add(write_rows(world.spool, 21, [{"at": 1, "v": 7_000}], table="alone"), is_stored=True)
    world.close()


def opened(directory: Path) -> MergeWorld:
    """The next life: what the catalog does not list, or the store has, goes from the spool; the rest waits."""
    world = MergeWorld(directory)
    for part in world.catalog.state.parts:
        if part.is_stored:  # as the uploader does at its start
            (world.spool / part_name(part)).unlink(missing_ok=True)
    clean_spool(world.spool, world.catalog.state.parts, is_trusted=True)
    world.buffer.persisted(0, world.catalog.state.parts)
    world.outgoing.submit(part for part in world.catalog.state.parts if not part.is_stored)
    world.wall_ns = CLOSED_NS
    return world


def maintain(world: MergeWorld) -> None:
    """Everything that maintenance does, with the uploader's part of it."""
    world.look_twice(world.retirer(RULES))
    world.merger().run(CLOSED_NS, lambda: None)
    world.trash.sweep()
    for part in list(world.outgoing.waiting):
        world.store.put(world.spool / part_name(part), part_key(part))
        world.catalog.mark_stored([part]).result()
        world.outgoing.waiting.remove(part)
        world.buffer.replace_part(part, replace(part, is_stored=True))
        (world.spool / part_name(part)).unlink()
    world.trash.sweep()


def values(world: MergeWorld) -> list[int]:
    """Values by key of all listed parts, the last write first: what a query would show."""
    rows: dict[tuple[str, Any, Any], tuple[int, int]] = {}
    for part in world.catalog.state.parts:
        for row in pq.read_table(world.files.open_path(part)).to_pylist():
            key = (part.table, row["time"], row["time_ns"])
            rows[key] = max(rows.get(key, (-1, 0)), (part.rank_hi, row["v"]))
    return sorted(value for (table, _, _), (_, value) in rows.items() if table != "old")


def kill_at(step: int) -> None:
    """Arm: the process kills itself before its `step`-th step from now on."""
    left = [step]

    def count() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            count()
            return function(*arguments)

        return wrapper

    os.fsync, os.fdatasync = counted(os.fsync), counted(os.fdatasync)
    commit = Transaction.commit

    def commit_between(self: Transaction) -> None:
        count()
        commit(self)
        count()

    Transaction.commit = commit_between  # type: ignore[method-assign]
    sys.addaudithook(lambda event, _: count() if event in {"os.rename", "os.remove", "os.link"} else None)


def check(directory: Path) -> None:
    """Nothing is lost, doubled or left behind, neither at once nor after carrying on."""
    world = opened(directory)
    assert values(world) == KEPT, values(world)
    maintain(world)
    maintain(world)
    assert values(world) == KEPT, values(world)
    state = world.catalog.state
    assert not state.gone
    assert all(part.is_stored for part in state.parts)
    assert {item.key for item in world.store.objects("")} == set(map(part_key, state.parts))
    assert not list(world.spool.iterdir())
    by_table: dict[str, int] = {}
    for part in state.parts:
        by_table[part.table] = by_table.get(part.table, 0) + 1
    assert max(by_table.values()) <= 4, by_table
    assert "old" not in by_table
    world.close()


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; returns its wait status."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(child, 0)[1]


def main() -> int:
    """All steps, until a life ends without having been killed."""
    base = Path(sys.argv[1])
    template = base / "template"
    assert in_child(lambda: build(template)) == 0
    for step in range(1, STEPS_MAX):
        directory = base / str(step)
        shutil.copytree(template, directory)

        def live(directory: Path = directory, step: int = step) -> None:
            world = opened(directory)
            kill_at(step)
            maintain(world)

        status = in_child(live)
        if not os.WIFSIGNALED(status):
            assert status == 0
            print(step - 1)
            return 0
        if in_child(lambda directory=directory: check(directory)):  # type: ignore[misc]
            print(f"step {step}: see above", file=sys.stderr)
            return 1
        shutil.rmtree(directory)
    raise AssertionError("it never ends")


if __name__ == "__main__":
    sys.exit(main())
