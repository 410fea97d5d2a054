"""Entry of `edge-appliance` and of `python -m edge_appliance`."""

from __future__ import annotations

import sys

from edge_appliance.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
