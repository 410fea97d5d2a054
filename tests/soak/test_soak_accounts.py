"""The accounts of memory against the resident size of a process, for shapes of lines that are hard on memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import memory_shapes
import pytest

pytestmark = [
    pytest.mark.skipif("EDGE_SOAK_S" not in os.environ, reason="make soak"),
    pytest.mark.soak,
    pytest.mark.slow,
]

SERIES_FACTOR = 16
"""Tags that are new in each line are held as Python objects; all else is held as columns."""


@pytest.mark.parametrize("shape", memory_shapes.SHAPES)
def test_accounts_follow_the_resident_size(shape: str) -> None:
    """What is counted is what the process grows by, within 25 % (15 % on a quiet machine); payload bounds both."""
    script = Path(memory_shapes.__file__)
    ran = subprocess.run([sys.executable, str(script), shape], capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr
    grown = json.loads(ran.stdout)
    error = grown["accounted"] / grown["resident"] - 1
    factor = grown["resident"] / grown["payload"]
    print(f"{shape}: accounted {error:+.0%}, {factor:.1f} bytes a byte of payload")
    assert abs(error) < 0.25
    assert factor < (SERIES_FACTOR if shape == "many series" else 4)
