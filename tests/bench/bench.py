"""Measures the appliance against its peers and its bars: `make bench ARGS="--only mqtt,http --scale 0.1"`.

Peers run beside it in the same run, so ratios hold where absolute numbers do not. A peer that is missing is skipped.
The table is kept in bench-results, one file a commit; `make bench ARGS="--compare A B"` shows two of them side by side.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench-results"
sys.path.insert(0, str(ROOT / "tests" / "support"))

from bench_append import parse_and_append, series, shapes, tables  # noqa: E402
from bench_daemon import latency, replay, start_of_commands  # noqa: E402
from bench_drain import hundred_lines, single_lines  # noqa: E402
from bench_http import http_writes, log_size  # noqa: E402
from bench_memory import memory  # noqa: E402
from bench_outage import outage  # noqa: E402
from bench_persist import persist  # noqa: E402
from bench_rejects import rejects  # noqa: E402
from bench_results import compare, host_facts, save  # noqa: E402
from bench_table import HEADING, Bench  # noqa: E402
from bench_view import views  # noqa: E402

BENCHES: dict[str, tuple[str, Callable[[Bench], None]]] = {
    "append": ("parse and append in one process", parse_and_append),
    "shapes": ("parse and append by number of fields, and quoted strings", shapes),
    "tables": ("cost of a line by number of tables", tables),
    "series": ("cost of a line by number of series", series),
    "rejects": ("cost of a rejected line", rejects),
    "mqtt": ("drain a queue of QoS 1 messages with durable acks, one line each", single_lines),
    "mqtt100": ("the same with a hundred lines each", hundred_lines),
    "http": ("HTTP writes", http_writes),
    "log": ("size of the log", log_size),
    "replay": ("replay of the log", replay),
    "persist": ("persist, and size of the parts", persist),
    "outage": ("an object store that is away, and how fast the spool drains", outage),
    "memory": ("resident memory", memory),
    "view": ("cost of queries to the ingest", views),
    "latency": ("publish to visible", latency),
    "start": ("start of a command", start_of_commands),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen benches; returns 1 when a bar is not kept at full scale."""
    options = parse(argv)
    if options.compare:
        print("\n".join(compare(RESULTS, *options.compare)))
        return 0
    RESULTS.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=RESULTS))
    bench = Bench(directory, options.scale)
    try:
        facts = host_facts(directory, options.scale)
        print("\n".join([*(f"{fact}: {value}" for fact, value in facts.items()), HEADING]))
        for item, (title, run) in BENCHES.items():
            if item in options.only:
                print(f"{item}: {title}", flush=True)
                bench.item = item
                run(bench)
                text = save(RESULTS, bench, facts)
    finally:
        shutil.rmtree(directory)
    print(f"kept in {text.relative_to(ROOT)}")
    missed = [row for row in bench.rows if row.is_kept is False]
    for row in missed:
        print(f"NOT MET: {row.brief}")
    return 1 if missed and bench.scale >= 1 else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    items = "\n".join(f"  {item:<10}{title}" for item, (title, _) in BENCHES.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\nItems:\n{items}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(BENCHES), help="items to run, such as mqtt,http")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the runs; bars hold for 1")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two commits or files of results")
    options = parser.parse_args(argv)
    options.only = set(options.only.split(","))
    if unknown := options.only - BENCHES.keys():
        parser.error(f"there is no item {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
