"""Installing, upgrading, removing and purging the package, as dpkg does it."""

import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from machine import Machine
from ports import wait_until

pytestmark = pytest.mark.system

SETTINGS = "/etc/edge-appliance/edge-appliance.toml"
READY_S = 30.0
MAX_PACKAGE_BYTES = 60_000_000
MAX_INSTALLED_KIB = 260_000


def put(machine: Machine, package: Path) -> str:
    """Place a package on the machine's disk; returns its path there."""
    shutil.copy(package, machine.root / "root/package.deb")
    return "/root/package.deb"


def owner(machine: Machine, path: str) -> tuple[str, str]:
    """Mode, and user and group by name."""
    mode, names = machine.output("stat", "--format=%a %U:%G", path).split()
    return mode, names


def test_install_where_no_systemd_runs(off: Machine) -> None:
    """In a chroot it installs all the same: user, directories and compiled code are there, nothing was started."""
    assert owner(off, "/etc/edge-appliance") == ("750", "root:edge-appliance")
    assert owner(off, "/etc/edge-appliance/conf.d") == ("750", "root:edge-appliance")
    assert owner(off, "/etc/edge-appliance/credentials") == ("700", "root:root")
    assert owner(off, SETTINGS) == ("640", "root:edge-appliance")
    shell = off.output("getent", "passwd", "edge-appliance").split(":")[-1]
    assert shell.endswith("nologin")
    assert list((off.root / "usr/lib/edge-appliance/edge_appliance/__pycache__").glob("*.pyc"))
    assert not (off.root / "var/lib/edge-appliance").exists()
    enabled = off.root / "etc/systemd/system/multi-user.target.wants/edge-appliance.service"
    assert enabled.is_symlink()


@pytest.mark.essential
def test_every_installed_file_belongs_to_root(off: Machine) -> None:
    """Code and settings are root's and nobody else may write them; nothing is set-uid."""
    group = int(off.output("getent", "group", "edge-appliance").split(":")[2])
    for top in (
        "usr/lib/edge-appliance",
        "usr/bin/edge-appliance",
        "etc/edge-appliance",
        "usr/share/doc/edge-appliance",
    ):
        root = off.root / top
        for path in [root, *root.rglob("*")]:
            status = path.lstat()
            assert status.st_uid == 0, path
            assert status.st_gid in (0, group), path
            assert path.is_symlink() or not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID), path
    programs = [p for p in (off.root / "usr/lib/edge-appliance").rglob("*") if p.is_file() and os.access(p, os.X_OK)]
    modes = {p for p in programs if p.stat().st_mode & 0o111}
    assert not modes


@pytest.mark.essential
def test_sizes(package: Path, off: Machine) -> None:
    """The package and what it makes of the disk stay small enough for a gateway."""
    installed = int(off.output("dpkg-query", "--show", "--showformat=${Installed-Size}", "edge-appliance"))
    on_disk = int(off.output("du", "--summarize", "--block-size=1K", "/usr/lib/edge-appliance").split()[0])
    assert (installed <= MAX_INSTALLED_KIB, on_disk <= MAX_INSTALLED_KIB) == (True, True)
    # A quick build is packed badly, which says nothing about a release.
    if b"data.tar.xz" in package.read_bytes()[:200_000]:
        assert package.stat().st_size <= MAX_PACKAGE_BYTES


@pytest.mark.essential
def test_install_on_a_running_system(plain: Machine, package: Path) -> None:
    """One command, nobody to answer questions: it is ready within seconds, enabled, and listens on the loopback."""
    plain.boot()
    path = put(plain, package)
    plain.run("dpkg", "--install", path, timeout_s=READY_S)
    assert plain.is_active(), plain.messages()
    assert plain.show("UnitFileState", "NRestarts", "NeedDaemonReload") == {
        "UnitFileState": "enabled",
        "NRestarts": "0",
        "NeedDaemonReload": "no",
    }
    assert re.findall(r"(\S+):8181 ", plain.output("ss", "--listening", "--numeric", "--tcp")) == ["127.0.0.1"]


def test_install_over_a_bad_configuration(plain: Machine, package: Path) -> None:
    """Faults of a configuration are the service's affair: dpkg finishes, the journal names them, nothing loops."""
    plain.write("/etc/edge-appliance/conf.d/bad.toml", "[mqtt]\nporrt = 1883\n")
    plain.boot()
    plain.run("dpkg", "--install", put(plain, package), timeout_s=READY_S)
    assert plain.output("dpkg-query", "--show", "--showformat=${Status}", "edge-appliance") == "install ok installed"
    state = plain.show("ActiveState", "ExecMainStatus", "NRestarts")
    assert state == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
    assert "conf.d/bad.toml:2: mqtt.porrt: unknown key; did you mean 'port'?" in plain.messages()


def test_install_over_a_user_that_exists(plain: Machine, package: Path) -> None:
    """A group and user of that name, left by an earlier installation, are taken as they are."""
    plain.run("groupadd", "--system", "--gid", "789", "edge-appliance")
    plain.run("useradd", "--system", "--uid", "788", "--gid", "789", "--no-create-home", "edge-appliance")
    plain.run("dpkg", "--install", put(plain, package))
    assert (
        plain.output("id", "edge-appliance")
        == "uid=788(edge-appliance) gid=789(edge-appliance) groups=789(edge-appliance)"
    )
    plain.boot()
    plain.wait_active()
    assert owner(plain, "/var/lib/edge-appliance") == ("750", "edge-appliance:edge-appliance")


@pytest.mark.essential
def test_upgrade_keeps_rows_settings_and_modes(machine: Machine, newer: Callable[..., Path]) -> None:
    """An upgrade restarts once, asks nothing, and leaves rows, an edited file, its mode and a drop-in alone."""
    edited = '[mqtt]\nhost = "127.0.0.1"\n# our own\n'
    machine.write(SETTINGS, edited, 0o600)
    machine.run("chown", "edge-appliance:root", SETTINGS)
    machine.drop_in("ours", "Environment=OURS=1")
    machine.run("systemctl", "restart", "edge-appliance")
    machine.publish("devices/d1/lp", *(f"upgraded n={n}i {1_790_000_000 + n}" for n in range(500)))
    wait_until(lambda: machine.count("upgraded") == 500, "the rows are there")
    before = machine.main_pid()

    # As unattended upgrades call it: without --force-confold dpkg itself would ask, both sides having changed it.
    path = put(machine, newer("1", "# as shipped with 1\n"))
    machine.run("dpkg", "--force-confold", "--install", path)

    machine.wait_active()
    assert machine.count("upgraded") == 500
    assert (machine.root / SETTINGS.lstrip("/")).read_text() == edited
    assert owner(machine, SETTINGS) == ("600", "edge-appliance:root")
    assert "# as shipped with 1" in (machine.root / f"{SETTINGS}.dpkg-dist".lstrip("/")).read_text()
    state = machine.show("NRestarts", "NeedDaemonReload", "Environment")
    assert (state["NRestarts"], state["NeedDaemonReload"]) == ("0", "no")
    assert "OURS=1" in state["Environment"]
    assert machine.main_pid() not in (0, before)
    starts = [entry for entry in machine.journal() if "ready: http" in str(entry["MESSAGE"])]
    assert len(starts) == 3


def test_upgrade_with_an_edited_file_asks_nothing(machine: Machine, newer: Callable[..., Path]) -> None:
    """While the shipped file stays as it was, which is why it is small, an edited one meets no question."""
    edited = '[mqtt]\nhost = "127.0.0.1"\n# our own\n'
    machine.write(SETTINGS, edited)
    machine.run("dpkg", "--install", put(machine, newer("1")))
    assert (machine.root / SETTINGS.lstrip("/")).read_text() == edited


def test_upgrade_leaves_a_disabled_service_alone(machine: Machine, newer: Callable[..., Path]) -> None:
    """A service that its administrator stopped and disabled is neither enabled nor started by an upgrade."""
    machine.run("systemctl", "disable", "--now", "edge-appliance")
    machine.run("dpkg", "--install", put(machine, newer("1")))
    state = machine.show("UnitFileState", "ActiveState")
    assert state == {"UnitFileState": "disabled", "ActiveState": "inactive"}


def test_upgrade_compiles_the_new_code(machine: Machine, newer: Callable[..., Path]) -> None:
    """Compiled files are those of the code that is there: no old one is taken for it."""
    machine.run("dpkg", "--install", put(machine, newer("1")))
    code = (machine.root / "usr/lib/edge-appliance/edge_appliance").glob("*.py")
    compiled = machine.root / "usr/lib/edge-appliance/edge_appliance/__pycache__"
    names = {re.sub(r"\.cpython-\d+$", "", path.stem) for path in compiled.glob("*.pyc")}
    assert names == {path.stem for path in code}
    assert owner(machine, "/usr/lib/edge-appliance/edge_appliance/__pycache__")[1] == "root:root"


@pytest.mark.essential
def test_remove_keeps_rows_and_a_new_installation_finds_them(machine: Machine, package: Path) -> None:
    """Removing stops the service and leaves settings and rows; no compiled file stays behind; installing goes on."""
    machine.publish("devices/d1/lp", "kept v=1 1790000000")
    wait_until(lambda: machine.count("kept") == 1, "the row is there")
    machine.run("dpkg", "--remove", "edge-appliance")
    assert machine.main_pid() == 0
    assert not (machine.root / "usr/lib/edge-appliance").exists()
    assert (machine.root / SETTINGS.lstrip("/")).exists()
    machine.run("dpkg", "--install", put(machine, package))
    machine.wait_active()
    assert machine.count("kept") == 1


@pytest.mark.essential
def test_purge_takes_what_is_ours_and_nothing_else(machine: Machine) -> None:
    """Purging deletes state and settings; a data directory that was put elsewhere, and the user, stay."""
    machine.run("install", "-d", "-o", "edge-appliance", "-g", "edge-appliance", "-m", "0750", "/srv/edge")
    machine.write("/srv/edge/rows", "not ours to delete")
    machine.write("/etc/edge-appliance/conf.d/site.toml", '[node]\nid = "gw-1"\n')
    machine.run("dpkg", "--purge", "edge-appliance")
    for path in ("var/lib/edge-appliance", "etc/edge-appliance", "usr/lib/edge-appliance", "usr/bin/edge-appliance"):
        assert not (machine.root / path).exists(), path
    assert (machine.root / "srv/edge/rows").read_text() == "not ours to delete"
    assert machine.output("id", "--user", "--name", "edge-appliance") == "edge-appliance"
    state = machine.show("LoadState", "ActiveState")
    assert state == {"LoadState": "not-found", "ActiveState": "inactive"}


def test_man_pages_and_completion(off: Machine) -> None:
    """Both man pages are found and say something, and bash takes the completion."""
    for page, part in (("8 edge-appliance", "check-config"), ("5 edge-appliance.toml", 'group_delay = "20ms"')):
        assert part in off.output("env", "MANWIDTH=200", "man", *page.split())
    off.run("bash", "-n", "/usr/share/bash-completion/completions/edge-appliance")
