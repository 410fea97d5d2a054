#!/bin/bash
# Builds the compiled modules with AddressSanitizer and UndefinedBehaviorSanitizer, apart from the others, and runs the
# given tests on them: any access beyond its bounds, or any overflow, ends the run.
set -euo pipefail
cd "$(dirname "$0")/.."

.venv/bin/python -c 'import Cython, setuptools' 2>/dev/null \
    || .venv/bin/python -m pip install --quiet --disable-pip-version-check 'setuptools>=65' 'cython>=3.1,<4'
built=build/sanitized
rm -rf "$built"
EDGE_APPLIANCE_SANITIZE=address,undefined .venv/bin/python setup.py --quiet build \
    --build-lib "$built" --build-temp "$built.objects" >/dev/null
[ -n "$(find "$built" -name 'kernel*.so')" ] || { echo "sanitize: the kernel was not built; is there a C compiler?" >&2; exit 1; }

# The sanitizer must be the first library of the process. Python's own blocks come from malloc, so that it sees them, and
# what the interpreter never frees is no leak of ours.
exec env \
    LD_PRELOAD="$(cc -print-file-name=libasan.so) $(cc -print-file-name=libubsan.so)" \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
    PYTHONMALLOC=malloc PYTHONPATH="$built" \
    .venv/bin/pytest -p no:cacheprovider --capture=sys "$@"
