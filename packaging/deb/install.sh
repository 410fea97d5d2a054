#!/bin/bash
# install.sh PYTHON TARGET WHEELHOUSE WHEELS LIBRARY STRIP: puts all wheels into LIBRARY and takes out what no code of ours loads.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="$1" target="$2" wheelhouse="$3" wheels="$4" library="$5" strip="$6"

install_wheels() {
    readarray -t platform < <("$python" "$here/wheels.py" options "$target")
    "$python" -m pip install --quiet --no-compile --no-deps --only-binary :all: "${platform[@]}" --target "$library" "$@"
}

# Each of these was tried: everything that is imported, and every query and write of the tests, goes without.
remove_unused() {
    local arrow="$library/pyarrow"
    # Flight, and the stores, file formats and devices that are not used.
    rm -f "$arrow"/libarrow_flight.so.* "$arrow"/_flight.* "$arrow"/libarrow_s3.so.* "$arrow"/_s3fs.* \
        "$arrow"/_orc.* "$arrow"/_hdfs.* "$arrow"/_gcsfs.* "$arrow"/_azurefs.* "$arrow"/_cuda.*
    # What is needed to compile against it.
    rm -rf "$arrow/include" "$arrow/includes" "$arrow/src" "$arrow/tests"
    # A wheel cannot hold links, so that one library is in there under its three names.
    find "$arrow" -name 'libarrow_python*.so' -o -name 'libarrow_python*.so.*.*.*' | xargs -r rm -f
    find "$library" \( -name '*.pxd' -o -name '*.pxi' -o -name '*.pyx' -o -name '*.c' -o -name '*.h' -o -name '*.pyi' \
        -o -name py.typed \) -delete
    find "$library" -type d \( -name tests -o -name test \) -prune -exec rm -rf {} +
    find "$library" -type d -name .hash -prune -exec rm -rf {} +
    # They hold the path of the build directory. METADATA stays: datafusion asks for its own version.
    rm -f "$library"/*.dist-info/{RECORD,INSTALLER,REQUESTED,direct_url.json}
    find "$library" -type d -empty -delete
}

normalise() {
    find "$library" -type f \( -name '*.so' -o -name '*.so.*' \) -exec "$strip" --strip-unneeded --remove-section=.comment {} +
    find "$library" -type d -exec chmod 755 {} +
    find "$library" -type f -exec chmod 644 {} +
}

# A kernel that was not compiled would only be slow, which nobody would notice here.
check_compiled() {
    local source
    while read -r source; do
        compgen -G "$library/${source%.pyx}.*.so" >/dev/null || {
            echo "install.sh: $source was not compiled" >&2
            exit 1
        }
    done < <(find edge_appliance -name '*.pyx')
}

install_wheels --find-links "$wheelhouse" --require-hashes --requirement "$here/lock/shipped.txt"
rm -rf "$library/bin"
install_wheels "$wheels"/*.whl
rm -rf "$library/bin"
remove_unused
normalise
check_compiled
