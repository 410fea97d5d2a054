#!/bin/bash
# Makes a checkout ready to run: system packages by apt, a virtual environment in .venv, the package in it.
# Does only what is missing; further programs can be named as arguments, PROGRAM or PROGRAM:PACKAGE.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PATH:/usr/sbin:/sbin" # where Debian puts mosquitto, and an ordinary user's PATH does not look

python="${PYTHON:-python3}"

fail() {
    echo "setup: $*" >&2
    exit 1
}

can_make_environments() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null
}

can_compile() {
    local headers
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))') || return
    command -v cc >/dev/null && [ -e "$headers/Python.h" ]
}

missing_packages() {
    command -v mosquitto >/dev/null || echo mosquitto
    command -v mosquitto_pub >/dev/null || echo mosquitto-clients
    command -v "$python" >/dev/null || echo python3
    can_make_environments || echo python3-venv
    can_compile || printf '%s\n' gcc libc6-dev python3-dev # for the compiled kernel
    local program
    for program in "$@"; do
        command -v "${program%%:*}" >/dev/null || echo "${program##*:}"
    done
}

install_packages() {
    local as_root=()
    command -v apt-get >/dev/null || fail "install these first, there is no apt-get here: $*"
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "root is needed once: apt-get install $*"
        as_root=(sudo)
    fi
    echo "setup: installing $*"
    "${as_root[@]}" apt-get update -qq || echo "setup: apt-get update failed; trying with the lists that are here" >&2
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$@" >/dev/null \
        || fail "apt-get could not install: $*"
}

# What the environment was made from: when it is the same as last time, there is nothing to do.
fingerprint() {
    pwd
    "$python" -c 'import sys; print(sys.version, sys.prefix)'
    cat pyproject.toml setup.py edge_appliance/*.pyx edge_appliance/core/*.p[yx][xi]
    command -v cc || true
}

make_environment() {
    if ! .venv/bin/python -c '' 2>/dev/null; then
        echo "setup: creating .venv"
        rm -rf .venv
        "$python" -m venv .venv || fail "$python cannot create a virtual environment"
    fi
    echo "setup: installing the package and its dependencies into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' \
        || fail "pip could not install the dependencies; is a package index reachable? (pip config list)"
}

readarray -t missing < <(missing_packages "$@")
if [ "${#missing[@]}" -gt 0 ]; then
    install_packages "${missing[@]}"
fi
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || fail "$("$python" --version) is too old: Python 3.11 or newer is needed (name one with PYTHON=…)"
can_make_environments || fail "$python lacks the venv module, and the package python3-venv did not bring it"

stamp=.venv/made-from
if [ "$(fingerprint)" != "$(cat "$stamp" 2>/dev/null)" ] || ! .venv/bin/python -c '' 2>/dev/null; then
    make_environment
    fingerprint >"$stamp"
fi
