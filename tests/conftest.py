"""Makes the helpers in tests/support, and the parts of the bench, importable by every test."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / name) for name in ("support", "bench")]
