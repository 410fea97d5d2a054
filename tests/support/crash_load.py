"""Load with books: numbered lines, who has acknowledged which, and the comparison with what SQL finds.

Each line carries a number and values that follow from it, so that a lost, doubled, invented or altered row shows.
Table `timed` states its times; the lines of `untimed` get theirs on arrival, so one stored twice is two rows.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from appliance_process import ApplianceProcess, RefusedError

ROUTE = {"topic": "crash/{device}/lp", "database": "edge"}
BASE_NS = 1_767_225_600_000_000_000
STEP_NS = 1_000_003
LINES_PER_MESSAGE = 8
QUERY_TRIES = 20

_NUMBER = re.compile(rb"id=(\d+)i")


def numbers_in(payload: bytes) -> list[int]:
    """Numbers of the lines in a payload."""
    return [int(number) for number in _NUMBER.findall(payload)]


class Lines:
    """Makes payloads of fresh lines; safe to use from several threads.

    `padding` makes each line that much longer, by noise.
    """

    def __init__(self, padding: int = 0) -> None:
        self._numbers = itertools.count(1)
        self._padding = padding

    def payload(self, source: str) -> bytes:
        """Some lines with times and one without."""
        numbers = [next(self._numbers) for _ in range(LINES_PER_MESSAGE + 1)]
        lines = [
            f'timed,source={source} id={n}i,v={n / 4},s="n{n}"{self._pad(n)} {BASE_NS + n * STEP_NS}'.encode()
            for n in numbers[1:]
        ]
        lines.append(f"untimed,source={source} id={numbers[0]}i,v={numbers[0] / 4}".encode())
        return b"\n".join(lines)

    def _pad(self, number: int) -> str:
        """A field that no compression makes small."""
        return f',pad="{random.Random(number).randbytes(self._padding // 2).hex()}"' if self._padding else ""


@dataclass
class Books:
    """Numbers of lines that may be there (sent) and that must be there (acked)."""

    sent: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)


def check(appliance: ApplianceProcess, acked: Callable[[], set[int]], sent: Callable[[], set[int]]) -> set[int]:
    """Assert acked ⊆ recovered ⊆ sent with exact values and no row twice; returns what was recovered."""
    must = acked()
    recovered = _read(appliance, "timed") + _read(appliance, "untimed")
    may = sent()
    found = set(recovered)
    doubled = len(recovered) - len(found)
    assert not doubled, f"{doubled} rows are there twice"
    assert not must - found, f"{len(must - found)} acknowledged lines are lost, such as {sorted(must - found)[:5]}"
    assert not found - may, f"{len(found - may)} rows were never sent, such as {sorted(found - may)[:5]}"
    return found


def _read(appliance: ApplianceProcess, table: str) -> list[int]:
    """Numbers of all rows of a table, after a look at their values; empty when there is no such table."""
    if not _ask(appliance, f"SELECT table_name FROM information_schema.tables WHERE table_name = '{table}'").num_rows:
        return []
    columns = "id, v, s, time" if table == "timed" else "id, v"
    rows = _ask(appliance, f"SELECT {columns} FROM {table}")
    ids = rows["id"]
    assert pc.all(pc.equal(rows["v"], pc.divide(pc.cast(ids, "float64"), 4))).as_py() is not False
    if table == "timed":
        stated = pc.add(pc.multiply(ids, STEP_NS), BASE_NS)
        assert pc.all(pc.equal(pc.cast(rows["time"], "int64"), stated)).as_py() is not False, "a time was altered"
        named = pc.binary_join_element_wise("n", pc.cast(ids, "string"), "")
        assert pc.all(pc.equal(rows["s"], named)).as_py() is not False, "a string was altered"
    numbers: list[int] = ids.to_pylist()
    return numbers


def _ask(appliance: ApplianceProcess, sql: str) -> pa.Table:
    """Answer of a query that, with little memory, may be refused or have to end for rows; then it is asked again."""
    for _ in range(QUERY_TRIES):
        try:
            return appliance.query_table(sql)
        except RefusedError as error:
            if error.status != 503:
                raise
        time.sleep(0.2)
    raise AssertionError(f"ended {QUERY_TRIES} times: {sql}")


class Repeating:
    """Calls `step` in a thread, over and over, until the end of the with block; its failure is raised there."""

    def __init__(self, step: Callable[[], object], name: str) -> None:
        self._step = step
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Repeating:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        if self._failure is not None and kind is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
        except BaseException as error:  # handed to the thread that waits for this one
            self._failure = error


class HttpWriter:
    """Writes payloads by HTTP, each of them once, and books what was answered with success."""

    def __init__(self, appliance: ApplianceProcess, lines: Lines, pause_s: float = 0.01) -> None:
        self.books = Books()
        self._appliance = appliance
        self._lines = lines
        self._pause_s = pause_s

    def step(self) -> bool:
        """Write one payload, and say whether it was acknowledged; whatever goes wrong, it is not written again."""
        payload = self._lines.payload("http")
        numbers = numbers_in(payload)
        self.books.sent.update(numbers)
        time.sleep(self._pause_s)
        try:
            self._appliance.write(payload, timeout_s=8)
        except RefusedError as error:
            assert error.status == 503, f"a good body was refused: {error}"
            return False
        except OSError:
            time.sleep(5 * self._pause_s)  # it is down
            return False
        self.books.acked.update(numbers)
        return True


def numbers_of(payloads: Iterable[bytes]) -> set[int]:
    """Numbers of the lines in all `payloads`."""
    return {number for payload in payloads for number in numbers_in(payload)}
