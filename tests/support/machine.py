"""A Debian system with a real systemd, in a container: booted in about a second from layers that stay as they are."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ports import wait_until

BASE_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "procps", "iproute2", "python3", "libstdc++6", "man-db"),
    *("mosquitto", "mosquitto-clients"),
)
CLEAN = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
CGROUPS = Path("/sys/fs/cgroup")
BOOT_S = 30.0
POWER_OFF_S = 20.0
_numbers = itertools.count(1)


def why_no_machines() -> str:
    """Why no container can be run here; empty when it can."""
    if os.geteuid() != 0:
        return "containers need root"
    for program in ("systemd-nspawn", "debootstrap", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    probe = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "sh", "-c", "mount -t tmpfs none /mnt"]
    refused = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"the kernel forbids containers: {refused.stderr.strip()}" if refused.returncode else ""


def debian_root(release: str, script: Path) -> Path:
    """The directory of a base system of that release, from the cache or made anew."""
    made = subprocess.run([script, release, *BASE_PACKAGES], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.strip())


class Machine:
    """One system over read-only layers, the first of them on top. Every command runs with a clean environment."""

    def __init__(self, directory: Path, layers: Sequence[Path]) -> None:
        self.name = f"edge-{os.getpid()}-{next(_numbers)}"
        self._directory = directory
        self.root = directory / "root"
        self.changes = directory / "changes"
        self._leader = 0
        self._container: subprocess.Popen[bytes] | None = None
        self._state = ""
        self._started: list[subprocess.Popen[bytes]] = []
        self._cgroups: list[Path] = []
        for path in (self.root, self.changes, directory / "work"):
            path.mkdir(parents=True)
        below = ":".join(map(str, layers))
        options = f"lowerdir={below},upperdir={self.changes},workdir={directory / 'work'}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.root], check=True)
        # What is installed here need not survive a power cut, so that dpkg need not sync each file.
        self.write("/etc/dpkg/dpkg.cfg.d/quick", "force-unsafe-io\n")

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Life

    def boot(self) -> Machine:
        """Start systemd as its process 1, without any network but the loopback, and wait until it has settled."""
        command = ["systemd-nspawn", "--quiet", "--boot", f"--directory={self.root}", f"--machine={self.name}"]
        command += ["--register=no", "--private-network", "--console=pipe"]
        if not Path("/run/systemd/system").exists():
            files = " ".join(f"{group}/cgroup.procs" for group in self._make_cgroups())
            command += ["--keep-unit"]
            command = ["sh", "-c", f'for file in {files}; do echo $$ >$file; done; exec "$@"', "sh", *command]
        with (self._directory / "console").open("ab") as console:
            self._container = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**CLEAN, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
                start_new_session=True,
            )
        wait_until(self._find_leader, "the container has a process 1", BOOT_S)
        wait_until(self._has_settled, "systemd has settled", BOOT_S, pause_s=0.05)
        return self

    def _make_cgroups(self) -> list[Path]:
        """Groups of its own: without systemd outside, every container would take the same ones."""
        hierarchies = [CGROUPS / name for name in ("unified", "systemd", "memory")]
        self._cgroups = [path / self.name for path in hierarchies if path.is_dir()] or [CGROUPS / self.name]
        for group in self._cgroups:
            group.mkdir()
        return self._cgroups

    def _find_leader(self) -> bool:
        assert self._container is not None
        if self._container.poll() is not None:
            raise AssertionError(f"the container has ended: {(self._directory / 'console').read_text()[-2000:]}")
        children = Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children")
        with contextlib.suppress(OSError):
            for pid in children.read_text().split():
                # Others among them only make the namespaces; the one that stays has number 1 in its own.
                numbers = re.findall(r"(?m)^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text())
                self._leader = int(pid) if numbers == ["1"] else self._leader
        return bool(self._leader)

    def _has_settled(self) -> bool:
        state = self.run("systemctl", "is-system-running", check=False, timeout_s=BOOT_S)
        self._state = state.stdout.strip() or state.stderr.strip()
        return self._state in ("running", "degraded")

    def close(self) -> None:
        """Power off, by force if need be, and take away what it was made of."""
        if self._container is not None:
            self._power_off(self._container)
            self._container = None
        for started in self._started:
            started.wait(POWER_OFF_S)
        self._leader = 0
        self._remove_cgroups()
        subprocess.run(["umount", self.root], check=False)

    def _remove_cgroups(self) -> None:
        wait_until(lambda: all(map(_is_removed, self._cgroups)), f"the groups of {self.name} are empty", POWER_OFF_S)
        self._cgroups = []

    def _power_off(self, container: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.run("systemctl", "poweroff", "--no-block", check=False, timeout_s=POWER_OFF_S)
            container.wait(POWER_OFF_S)
        if container.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)
            container.kill()
            container.wait(POWER_OFF_S)
        for group in self._cgroups[:1]:  # whatever the container left running
            _kill_all(group)

    def power_cut(self) -> None:
        """Kill every process of the machine at once; `boot` starts it again on the same disk."""
        assert self._container is not None
        os.kill(self._leader, signal.SIGKILL)
        self._container.wait(POWER_OFF_S)
        self._container, self._leader = None, 0
        self._remove_cgroups()

    # Commands

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 60.0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside; before the boot, in a plain change of root, where no systemd runs."""
        where = ["nsenter", f"--target={self._leader}", "--all", "--"] if self._leader else ["chroot", str(self.root)]
        done = subprocess.run(
            [*where, *command], env=CLEAN, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}{self._end()}"
            )
        return done

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command inside and leave it running; the machine's end is its end."""
        started = subprocess.Popen(
            ["nsenter", f"--target={self._leader}", "--all", "--", *command],
            env=CLEAN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(started)
        return started

    def output(self, *command: str, timeout_s: float = 60.0) -> str:
        """What a command prints."""
        return self.run(*command, timeout_s=timeout_s).stdout.strip()

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file onto its disk, as root."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def _end(self) -> str:
        """The end of the journal, for messages about failures."""
        if not self._leader:
            return ""
        tail = self.run("journalctl", "--no-pager", "-n", "30", "-o", "short-precise", check=False)
        return f"\n{tail.stdout}"

    # The service manager

    def show(self, *properties: str, unit: str = "edge-appliance") -> dict[str, str]:
        """Properties of a unit."""
        text = self.output("systemctl", "show", unit, f"--property={','.join(properties)}")
        return dict(line.partition("=")[::2] for line in text.splitlines())

    def main_pid(self) -> int:
        """Process id of the service inside the machine; 0 when it does not run."""
        return int(self.show("MainPID")["MainPID"])

    def kill(self, how: str) -> None:
        """Send a signal to the main process of the service."""
        self.run("systemctl", "kill", "--kill-who=main", f"--signal={how}", "edge-appliance")

    def is_active(self) -> bool:
        """Whether the service has said READY=1 and runs."""
        return self.run("systemctl", "is-active", "--quiet", "edge-appliance", check=False).returncode == 0

    def wait_active(self, timeout_s: float = 30.0) -> None:
        """Wait until the service is ready."""
        wait_until(self.is_active, f"the service is ready{self._end()}", timeout_s, pause_s=0.1)

    def drop_in(self, name: str, *lines: str) -> None:
        """Change the unit by a drop-in for [Service], and have systemd read it."""
        self.write(f"/etc/systemd/system/edge-appliance.service.d/{name}.conf", "\n".join(["[Service]", *lines, ""]))
        if self._leader:
            self.run("systemctl", "daemon-reload")

    def journal(self, *match: str) -> list[dict[str, Any]]:
        """Entries of the journal, of our unit unless something else is asked for."""
        lines = self.output("journalctl", "--no-pager", "-o", "json", *(match or ("-u", "edge-appliance"))).splitlines()
        return [json.loads(line) for line in lines]

    def messages(self, *match: str) -> str:
        """The texts of the journal, one a line."""
        return "\n".join(str(entry.get("MESSAGE", "")) for entry in self.journal(*match))

    # The appliance

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a SQL answer, by the installed command."""
        rows: list[dict[str, Any]] = json.loads(self.output("edge-appliance", "query", "-d", "edge", "-o", "json", sql))
        return rows

    def count(self, table: str) -> int:
        """Number of rows of a table; 0 before its first row."""
        sql = f'SELECT count(*) AS n FROM "{table}"'
        answer = self.run("edge-appliance", "query", "-d", "edge", "-o", "json", sql, check=False)
        if answer.returncode and "not found" in answer.stderr:
            return 0
        assert answer.returncode == 0, answer.stderr
        return int(json.loads(answer.stdout)[0]["n"])

    def publish(self, topic: str, *lines: str, login: Sequence[str] = ()) -> None:
        """Publish each line as a message of its own, QoS 1, to the broker inside."""
        command = ["mosquitto_pub", "-h", "127.0.0.1", "-q", "1", "-l", "-t", topic, *login]
        self.run(*command, stdin="".join(f"{line}\n" for line in lines))

    def metric(self, name: str) -> float:
        """One number of the status, without our prefix."""
        value = json.loads(self.output("edge-appliance", "status", "--json"))["metrics"][f"edge_appliance_{name}"]
        return float(sum(value.values()) if isinstance(value, dict) else value)


def clear_abandoned() -> None:
    """End the machines of test runs that were killed and could not do so themselves."""
    hierarchies = [path for name in ("unified", "systemd", "memory") if (path := CGROUPS / name).is_dir()] or [CGROUPS]
    for group in [group for path in hierarchies for group in path.glob("edge-*-*")]:
        if not Path(f"/proc/{group.name.split('-')[1]}").exists():
            _kill_all(group)
            wait_until(lambda group=group: _is_removed(group), f"{group} is empty", POWER_OFF_S)


def _kill_all(group: Path) -> None:
    for procs in group.rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            for pid in map(int, procs.read_text().split()):
                if pid:  # 0 is one that this namespace does not see, and would be ourselves
                    os.kill(pid, signal.SIGKILL)


def _is_removed(group: Path) -> bool:
    """Remove a control group with all below it, the innermost first; False while processes of it are still ending."""
    try:
        for path in sorted(group.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
        group.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def install(package: Path, directory: Path, base: Path) -> Path:
    """Install a package into a layer over `base`, where no systemd runs; returns the layer."""
    with Machine(directory, [base]) as machine:
        shutil.copy(package, machine.root / "tmp/package.deb")
        machine.run("dpkg", "--install", "/tmp/package.deb", timeout_s=120)
        (machine.root / "tmp/package.deb").unlink()
        return machine.changes


def wait(seconds: float) -> None:
    """Let real time pass where it is the thing that is tested, such as a timer of systemd that must not fire."""
    time.sleep(seconds)
