"""The table of budgets adds up, on machines of any size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.core.memory_plan import INBOX_SHARE, QUERY_SHARE, plan_memory

MIB = 2**20


@pytest.mark.parametrize(
    ("usable_mib", "buffer_mib", "cores", "slice_mib", "jobs"),
    [
        pytest.param(512, 128, 4, 11, 1, id="a small gateway has one job with a small slice"),
        pytest.param(1024, 256, 4, 32, 2, id="one GiB: full slices, not for all cores"),
        pytest.param(8192, 2048, 4, 32, 4, id="enough for all cores"),
    ],
)
def test_plan(usable_mib, buffer_mib, cores, slice_mib, jobs):
    """Workers have what is left of 60 %."""
    plan = plan_memory(usable_mib * MIB, buffer_mib * MIB, 16 * MIB, 128 * MIB, cores)
    assert (plan.slice_bytes // MIB, plan.jobs) == (slice_mib, jobs)
    assert plan.fits
    assert f"together {plan.total_bytes / MIB:.0f} MiB of {usable_mib} MiB usable" in str(plan)


def test_plan_that_does_not_fit_says_so():
    """Budgets that leave nothing for the workers are refused by whoever asked."""
    plan = plan_memory(512 * MIB, 256 * MIB, 16 * MIB, 128 * MIB, 4)
    assert not plan.fits
    assert plan.jobs == 1


@given(st.integers(128 * MIB, 2**40), st.integers(1, 256))
def test_defaults_fit_any_machine(usable_bytes, cores):
    """From 128 MiB up the defaults leave room for at least one job."""
    inbox, query = min(16 * MIB, int(usable_bytes * INBOX_SHARE)), min(128 * MIB, int(usable_bytes * QUERY_SHARE))
    plan = plan_memory(usable_bytes, usable_bytes // 4, inbox, query, cores)
    assert plan.fits
    assert 1 <= plan.jobs <= cores
