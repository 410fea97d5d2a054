#!/bin/bash
# generate.sh PYTHON WHEELHOUSE WHEELS DIR: writes man pages and completion into DIR, from the package's own parsers and sections.
# WHEELHOUSE is that of the machine this runs on, which need not be the one the package is for.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="$1" wheelhouse="$2" wheels="$3" out="$4"

# What the modules with the options and the sections import.
"$python" -m pip install --quiet --no-deps --find-links "$wheelhouse" --find-links "$wheels" \
    msgspec obstore psutil pyarrow tomli sdnotify typing-extensions
mkdir -p "$out"
export PYTHONPATH="$here/../.."
"$python" "$here/man_page.py" commands >"$out/edge-appliance.8"
"$python" "$here/man_page.py" configuration >"$out/edge-appliance.toml.5"
"$python" "$here/completion.py" >"$out/completion"
