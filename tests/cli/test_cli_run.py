"""cli.run: what happens before the appliance takes over."""

import logging
import signal
import socket
import subprocess
import sys
import types

import pytest

from edge_appliance.cli import main as cli
from edge_appliance.errors import CatalogError, PathError


@pytest.fixture
def appliance(monkeypatch):
    """An appliance that remembers its configuration and ends as told."""
    module = types.ModuleType("edge_appliance.appliance")
    module.settings, module.result = [], 0

    def run(settings, load):
        module.settings.append(settings)
        if isinstance(module.result, Exception):
            raise module.result
        return module.result

    module.run = run
    monkeypatch.setitem(sys.modules, "edge_appliance.appliance", module)
    return module


@pytest.fixture(autouse=True)
def clean_process(monkeypatch):
    """The signal and the root logger are as before afterwards."""
    root = logging.getLogger()
    before, level, handlers = signal.getsignal(signal.SIGHUP), root.level, root.handlers[:]
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    yield
    signal.signal(signal.SIGHUP, before)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


@pytest.fixture
def config_file(tmp_path):
    """A small configuration."""
    path = tmp_path / "edge.toml"
    path.write_text(f'[node]\nid = "gw-01"\ndata_dir = "{tmp_path}"\n[log]\nlevel = "warning"\n')
    return path


def test_run_hands_the_configuration_over(appliance, config_file):
    """The appliance gets the loaded configuration, its exit code is ours, and the log level is set."""
    appliance.result = 3
    assert cli.main(["run", "--config", str(config_file)]) == 3
    assert appliance.settings[0].node.id == "gw-01"
    assert logging.getLogger().level == logging.WARNING


def test_run_says_that_it_stopped(appliance, tmp_path, capsys):
    """An end in good order is in the journal, so that it can be told from one by a signal that kills."""
    path = tmp_path / "edge.toml"
    path.write_text(f'[node]\ndata_dir = "{tmp_path}"\n')
    assert cli.main(["run", "--config", str(path)]) == 0
    assert capsys.readouterr().err.endswith("INFO     cli.run: stopped\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [(PathError("/var/lib/x", "Read-only file system"), 73), (CatalogError("catalog.db is damaged"), 1)],
)
def test_run_foreseen_error(appliance, config_file, capsys, error, code):
    """What was foreseen is one line in the log and an exit code, without a traceback."""
    appliance.result = error
    assert cli.main(["run", "--config", str(config_file)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"ERROR    cli.run: {error}")


def test_run_faulty_configuration(appliance, config_file, capsys):
    """Every fault is in the log, more than a storm of lines would be allowed, and nothing is started."""
    config_file.write_text("[mqtt]\n" + "".join(f"key_{number} = 1\n" for number in range(30)))
    assert cli.main(["run", "--config", str(config_file)]) == 78
    text = capsys.readouterr().err
    assert text.count("unknown key") == 30
    assert "Traceback" not in text
    assert appliance.settings == []


def test_run_reports_to_systemd_before_heavy_imports(config_file, tmp_path):
    """The first message asks for time to start, and nothing heavy was imported before it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        code = (
            "import sys; from edge_appliance.cli import main, run\n"
            "run.start = lambda settings, load: print('pyarrow' in sys.modules) or 0\n"
            f"sys.exit(main.main(['run', '--config', {str(config_file)!r}]))"
        )
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={"NOTIFY_SOCKET": str(tmp_path / "notify")},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert listener.recv(4096) == b"EXTEND_TIMEOUT_USEC=120000000"
        assert listener.recv(4096) == b"STATUS=starting"
    assert found.stdout == "False\n"


def test_run_faulty_configuration_shows_in_the_unit_status(config_file, tmp_path, monkeypatch):
    """`systemctl status` shows the first fault of a unit that would not start."""
    config_file.write_text("[mqtt]\nport = 0\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert cli.main(["run", "--config", str(config_file)]) == 78
        messages = [listener.recv(4096).decode() for _ in range(3)]
    assert messages[2].startswith("STATUS=configuration: ")
    assert "mqtt.port: expected a whole number" in messages[2]


def test_run_ignores_a_hangup_from_the_start(appliance, config_file):
    """A SIGHUP while packages are still imported must not kill the service."""
    cli.main(["run", "--config", str(config_file)])
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
