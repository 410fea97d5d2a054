"""Measures the appliance against its peers and its bars: `make bench ARGS="--only a,c --scale 0.1"`.

Peers run beside it in the same run, so ratios hold where absolute numbers do not. A peer that is missing is skipped.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from bench_daemon import http_writes, latency, replay  # noqa: E402
from bench_drain import drain  # noqa: E402
from bench_in_process import parse_and_append, persist, start_of_commands  # noqa: E402
from bench_table import Bench, host_facts  # noqa: E402

BENCHES: dict[str, tuple[str, Callable[[Bench], None]]] = {
    "a": ("drain a queue of QoS 1 messages with durable acks", drain),
    "b": ("parse and append in one process", parse_and_append),
    "c": ("replay of the log", replay),
    "d": ("persist", persist),
    "e": ("HTTP writes; f: memory", http_writes),
    "g": ("publish to visible", latency),
    "h": ("start of a command", start_of_commands),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen benches; returns 1 when a bar is not kept."""
    options = parse(argv)
    directory = Path(tempfile.mkdtemp(prefix="edge-bench-", dir=ROOT / "bench-results"))
    bench = Bench(directory, options.scale)
    try:
        for fact, value in host_facts(directory).items():
            print(f"{fact}: {value}")
        for item, (title, run) in BENCHES.items():
            if item in options.only or (item == "e" and "f" in options.only):
                print(f"{item}: {title}", flush=True)
                run(bench)
        text = bench.save(ROOT / "bench-results")
    finally:
        shutil.rmtree(directory)
    print(f"kept in {text.relative_to(ROOT)}")
    missed = [row for row in bench.rows if row.is_kept is False]
    for row in missed:
        print(f"BELOW its bar: ({row.item}) {row.what}: {row.value}, wanted {row.bar}")
    return 1 if missed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="a,b,c,d,e,f,g,h", help="items to run, such as a,c")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the runs; bars hold for 1")
    options = parser.parse_args(argv)
    options.only = set(options.only.split(","))
    if unknown := options.only - {*BENCHES, "f"}:
        parser.error(f"there is no item {', '.join(sorted(unknown))}")
    (ROOT / "bench-results").mkdir(exist_ok=True)
    return options


if __name__ == "__main__":
    sys.exit(main())
