#!/bin/bash
# in_root.sh ROOT WORK COMMAND...: runs a command inside a throw-away copy of ROOT, with WORK as /work and without a network.
set -euo pipefail
root="$1" work="$2"
shift 2
export root work
# A mount namespace of its own: whatever happens, the mounts end with it. The network namespace has nothing in it.
exec unshare --mount --net --pid --fork bash -euo pipefail -c '
    layers="$(mktemp -d)"
    mount -t tmpfs -o mode=755 tmpfs "$layers"
    mkdir "$layers"/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=$root,upperdir=$layers/upper,workdir=$layers/work" "$layers/root"
    mkdir -p "$layers/root/work"
    mount --bind "$work" "$layers/root/work"
    mount -t proc proc "$layers/root/proc"
    mount --rbind /dev "$layers/root/dev"
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 COMPRESSION="${COMPRESSION:-xz}" \
        chroot "$layers/root" "$@"
' in_root "$@"
