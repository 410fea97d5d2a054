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
LEAST_FAILURES = 20

expected = Side(Appender, Script([])).write([Write(PAYLOAD, ORIGIN)], fails=False)
side = Side(Appender, Script([]))
for allocation in itertools.count(1):
    deliveries = [Delivery(ORIGIN, PAYLOAD, ARRIVAL_NS)]
    _testcapi.set_nomemory(allocation, allocation + 1)
    try:
        side.appender.append_group(side.segment, deliveries, [None])
    except MemoryError:
        _testcapi.remove_mem_hooks()
    else:
        _testcapi.remove_mem_hooks()
        break
    finally:
        side.segment.rollback()
        side.schema.rollback()
assert allocation > LEAST_FAILURES, allocation
print("the same" if side.write([Write(PAYLOAD, ORIGIN)], fails=False) == expected else "another result")
