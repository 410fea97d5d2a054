#!/bin/bash
# smoke.sh PACKAGE: the arm64 package for Debian 12, emulated with pages of 4 and of 16 KiB, as root. The larger ones are
# those of a Raspberry Pi 5.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
package="$1"

if ! command -v qemu-aarch64-static debootstrap >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends qemu-user-static debootstrap >/dev/null
fi
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
root="$work/root"
# The second stage would need the kernel to run arm64 programs by itself; their files are enough.
debootstrap --foreign --arch=arm64 --variant=minbase --include=python3,libstdc++6 bookworm "$root" >"$work/log" \
    || { tail -n 3 "$work/log" >&2; exit 1; }
for archive in "$root"/var/cache/apt/archives/*.deb "$package"; do
    dpkg-deb --extract "$archive" "$root"
done
# qemu maps no host page beyond the end of a file, where a kernel with larger pages maps the rest of its own: what lies
# there, the first bytes of a library's zeroed memory, would be missing.
find "$root/usr/lib/edge-appliance" -name '*.so' -exec truncate --size=+65536 {} +
cp "$(command -v qemu-aarch64-static)" "$root/usr/bin/"
cp "$here/smoke.py" "$root/"
mkdir -p "$root/proc" "$root/tmp"
for page in 4096 16384; do
    unshare --mount --pid --fork sh -c 'mount -t proc proc "$1/proc" && exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin ARROW_DEFAULT_MEMORY_POOL=mimalloc \
        chroot "$1" /usr/bin/qemu-aarch64-static -p "$2" /usr/bin/python3.11 -IS /smoke.py' sh "$root" "$page"
done
