#!/bin/bash
# build.sh [--release bookworm|trixie] [--arch amd64|arm64] [--output DIR]: builds the Debian package, into dist/.
#
# Built on this very system when it is that release and architecture; else in a root of that release, made by debootstrap
# once. A network is needed for what is not in the cache yet: wheels, and packages that build. COMPRESSION=gzip is quick
# and larger.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
tree="$(cd "$here/../.." && pwd)"
cache="${EDGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/edge-appliance}"

fail() {
    echo "build.sh: $*" >&2
    exit 1
}

here_release="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
here_arch="$(dpkg --print-architecture)"
release="$here_release" arch="$here_arch" output="$tree/dist"
while [ $# -gt 0 ]; do
    case "$1" in
    --release) release="$2" ;;
    --arch) arch="$2" ;;
    --output) output="$2" ;;
    *) fail "unknown option $1" ;;
    esac
    shift 2
done
case "$release" in
bookworm) suffix=deb12 python=cp311 ;;
trixie) suffix=deb13 python=cp313 ;;
*) fail "packages are made for bookworm (Debian 12) and trixie (Debian 13), not for '$release'" ;;
esac
case "$arch" in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) fail "packages are made for amd64 and arm64: Arrow publishes no wheels for '$arch'" ;;
esac
case "$here_arch" in
amd64) here_machine=x86_64 ;;
arm64) here_machine=aarch64 ;;
*) fail "this machine's architecture, '$here_arch', cannot build it" ;;
esac

packages=(build-essential debhelper fakeroot "libpython3-dev:$arch" python3-dev python3-venv)
[ "$arch" = "$here_arch" ] || packages+=("crossbuild-essential-$arch")

# The wheels of the package, and those that the machine it is built on needs to write the man pages.
wheelhouse() {
    local target lock
    lock="$(cat "$here"/lock/*.txt | sha256sum | cut -c 1-12)"
    for target in "$python-$machine" "$python-$here_machine"; do
        local directory="$cache/wheels/$lock-$target"
        if [ ! -d "$directory" ]; then
            echo "build.sh: fetching the wheels for $target" >&2
            mkdir -p "$cache/wheels"
            "$tree/.venv/bin/python" "$here/wheels.py" fetch "$target" "$directory.new" 2>"$directory.log" \
                || fail "they could not be fetched: $(tail -n 3 "$directory.log")"
            mv "$directory.new" "$directory"
        fi
        mkdir -p "$1/$target"
        cp -p "$directory"/* "$1/$target/"
    done
}

# What git knows, as it lies here; without git, everything that is not hidden. Modes follow no umask.
copy_tree() {
    if git -C "$tree" rev-parse --git-dir >/dev/null 2>&1; then
        git -C "$tree" ls-files -z --cached --others --exclude-standard \
            | tar -C "$tree" --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -C "$1" -xf -
    else
        tar -C "$tree" --exclude './.*' --exclude ./dist --exclude ./build -cf - . | tar -C "$1" -xf -
    fi
}

# Run in the build root, or here.
build='umask 022
export DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-} nocheck noautodbgsym"
dpkg-buildpackage --build=binary --no-sign --host-arch "$1" >../build.log 2>&1'

work="$(mktemp -d "${TMPDIR:-/tmp}/edge-appliance-deb.XXXXXX")"
trap 'rm -rf "$work"' EXIT
source="$work/edge-appliance"
mkdir -p "$source" "$output"
copy_tree "$source"
wheelhouse "$source/debian/wheelhouse"
# One upload makes one package a release of Debian, told apart by its version.
sed -i "1s/^edge-appliance (\(.*\)) [a-z]*;/edge-appliance (\1~${suffix}u1) $release;/" "$source/debian/changelog"

export COMPRESSION="${COMPRESSION:-xz}"
if [ "$release" = "$here_release" ] && [ "$arch" = "$here_arch" ]; then
    missing="$(cd "$source" && dpkg-checkbuilddeps 2>&1)" || {
        [ "$(id -u)" -eq 0 ] || fail "$missing; as root: apt-get install ${packages[*]}"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"; } \
            >"$work/apt.log" 2>&1 || fail "what builds packages could not be installed: $(tail -n 3 "$work/apt.log")"
    }
    (cd "$source" && PATH="/usr/sbin:/usr/bin:/sbin:/bin" bash -c "$build" build "$arch") || result=$?
else
    foreign=()
    [ "$arch" = "$here_arch" ] || foreign=(--foreign "$arch")
    root="$("$here/root.sh" "${foreign[@]}" "$release" "${packages[@]}")"
    "$here/in_root.sh" "$root" "$work" bash -c "cd /work/edge-appliance && $build" build "$arch" || result=$?
fi
if [ "${result:-0}" -ne 0 ]; then
    cp "$work/build.log" "$output/build.log"
    tail -n 20 "$work/build.log" >&2
    fail "the build failed; all of it is in $output/build.log"
fi
for package in "$work"/*.deb; do
    cp "$package" "$output/"
    echo "$(basename "$output")/$(basename "$package")"
done
