"""Appends a group again and again, each time with another allocation that fails, and then with none."""

import _testcapi
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from support.appenders import ARRIVAL_NS, Script, Side, Write

from edge_appliance.core.append import Appender
from edge_appliance.core.delivery import Delivery, Origin

ORIGIN = Origin("edge", "ns", (), "mqtt", "t", "t")
PAYLOAD = b'p,a=b v=1,s="x\\"y" 5\nq w=2i\np,a=b v=2,s="z",n=3u 6\nbad\np,a=b v=nan 7'
LEAST_FAILURES = 5
KNOWN = b'p,a=b v=3,s="a long string, longer than what is allocated ahead",n=4u 8'


def fails(side: Side, payload: bytes, allocation: int) -> bool:
    """Append a group while the numbered allocation fails, and take it back; whether that made it fail."""
    _testcapi.set_nomemory(allocation, allocation + 1)
    try:
        side.appender.append_group(side.segment, [Delivery(ORIGIN, payload, ARRIVAL_NS)], [None])
    except MemoryError:
        return True
    finally:
        _testcapi.remove_mem_hooks()
        side.segment.rollback()
        side.schema.rollback()
        tails = [(buffer.mark, buffer.tail) for buffer in side.segment.tables.values()]
        # A row that stayed, or a part of one, would be visible with the next group.
        assert all(mark == len(tail.time) == len(tail.series) for mark, tail in tails), allocation
        assert all(row < mark for mark, tail in tails for column in tail.columns.values() for row in column.rows[-1:])
    return False


expected, side = Side(Appender, Script([])), Side(Appender, Script([]))
seen = []
for payload in [PAYLOAD] + [KNOWN] * 40:  # so many that every array of the tail has to grow
    failures = next(n for n in itertools.count(1) if not fails(side, payload, n))
    assert failures > LEAST_FAILURES, failures
    written = [one.write([Write(payload, ORIGIN)], fails=False) for one in (expected, side)]
    seen.append(written[0] == written[1] and expected.picture() == side.picture())
print("the same" if all(seen) else "another result")
