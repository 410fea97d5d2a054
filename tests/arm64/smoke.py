"""Run inside an arm64 system with the package's files: everything is loaded and has written, read and asked once."""

import resource
import sys

sys.path.insert(0, "/usr/lib/edge-appliance")

import datafusion
import pyarrow as pa
import pyarrow.parquet as pq

import edge_appliance.appliance
import edge_appliance.core.kernel
import edge_appliance.mqtt_frames  # noqa: F401

ROWS = 100_000
table = pa.table({"n": list(range(ROWS)), "s": [f"x{n % 50}" for n in range(ROWS)]})
pq.write_table(table, "/tmp/smoke.parquet", compression="zstd")
context = datafusion.SessionContext()
context.register_parquet("t", "/tmp/smoke.parquet")
found = context.sql("SELECT count(*) AS n, max(n) AS most FROM t WHERE s = 'x3'").to_arrow_table().to_pylist()
assert found == [{"n": ROWS // 50, "most": ROWS - 47}], found
print(f"ok with pages of {resource.getpagesize()} bytes, Arrow's memory from {pa.default_memory_pool().backend_name}")
