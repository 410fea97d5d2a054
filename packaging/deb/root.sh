#!/bin/bash
# Prints the path of a Debian system in a directory, made by debootstrap when it is not in the cache yet.
#
#   root.sh RELEASE PACKAGE...                    bookworm or trixie, of this machine's architecture
#   root.sh --foreign arm64 RELEASE PACKAGE...    packages of a second architecture may be named, as in libc6:arm64
#   root.sh --arch arm64 RELEASE PACKAGE...       of another one, whose programs this machine must be able to run
#
# What is in it follows from the arguments, so a root is never changed after it was made: mount an overlay over it.
set -euo pipefail

arch="$(dpkg --print-architecture)" foreign=""
while [ "${1#--}" != "$1" ]; do
    case "$1" in
    --arch) arch="$2" ;;
    --foreign) foreign="$2" ;;
    esac
    shift 2
done
release="$1"
shift
cache="${EDGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/edge-appliance}/roots"
key="$release-$arch${foreign:+-with-$foreign}-$(printf '%s\n' 2 "$@" | sha256sum | cut -c 1-12)"
root="$cache/$key"

fail() {
    echo "root.sh: $*" >&2
    exit 1
}

mirror() {
    local configured
    configured="$(cat /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null \
        | awk '/^URIs:/ { print $2; exit } /^deb / { for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) { print $i; exit } }')"
    echo "${EDGE_DEBIAN_MIRROR:-${configured:-http://deb.debian.org/debian}}"
}

# debootstrap resolves plain dependencies only, so that apt, inside, installs what was asked for.
make_root() {
    # What a run that was killed has left; one that is still at work is left alone.
    for new in "$root".new-*; do
        [ -d "$new" ] && ! kill -0 "${new##*-}" 2>/dev/null && rm -rf "$new" "$new.log"
    done
    new="$root.new-$$"
    trap 'rm -rf "$new"' EXIT
    debootstrap --arch="$arch" --variant=minbase "$release" "$new" "$(mirror)" >"$new.log" 2>&1 \
        || fail "debootstrap of $release failed: $(tail -n 3 "$new.log")"
    [ -z "$foreign" ] || chroot "$new" dpkg --add-architecture "$foreign"
    # Services must not be started inside: nothing there runs under an init.
    printf '#!/bin/sh\nexit 101\n' >"$new/usr/sbin/policy-rc.d"
    chmod 755 "$new/usr/sbin/policy-rc.d"
    cp /etc/resolv.conf "$new/etc/resolv.conf"
    {
        chroot "$new" apt-get update
        chroot "$new" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
        chroot "$new" apt-get clean
    } >>"$new.log" 2>&1 </dev/null || fail "the packages could not be installed: $(tail -n 3 "$new.log")"
    rm -f "$new/usr/sbin/policy-rc.d" "$new.log"
    mv -T "$new" "$root" 2>/dev/null || [ -d "$root" ] || fail "$root cannot be created"
}

if [ ! -d "$root" ]; then
    [ "$(id -u)" -eq 0 ] || fail "root is needed to make a Debian $release system"
    command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
    mkdir -p "$cache"
    echo "root.sh: making a Debian $release $arch system, once" >&2
    make_root "$@" >&2
fi
echo "$root"
