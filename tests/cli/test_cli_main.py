"""cli.main: dispatch, help, exit codes, start time."""

import subprocess
import sys

import pytest

from edge_appliance.cli import main as cli
from edge_appliance.cli import version
from edge_appliance.cli.command import CommandError, Exit
from edge_appliance.errors import ConfigError, ConfigFault, PathError, QueryError

HEAVY = ("aiohttp", "pyarrow", "rich", "datafusion", "paho", "uvloop", "sqlite3", "obstore", "numpy")


def run_python(code, *arguments):
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_each_command(command, capsys):
    """Each command explains itself, with an example, and takes --config."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"examples:\n  edge-appliance {command}" in text


def test_help_keeps_capitals(capsys):
    """The sentence about a command is the one of the overview, with a capital first and nothing lower-cased."""
    with pytest.raises(SystemExit):
        cli.main(["query", "--help"])
    assert "Ask the running daemon with SQL." in capsys.readouterr().out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_top_help_lists_each_command(command, capsys):
    """The overview names every command with a sentence."""
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert f"  {command} " in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        ["serve"],
        ["status", "--yaml"],
        ["query"],
        ["query", "-o", "xml", "SELECT 1"],
        ["wal", "repair", "x"],
        ["rejects", "list", "--limit", "0"],
        ["rejects", "list", "--limit", "ten"],
        ["--yaml", "status"],
    ],
)
def test_usage_error(argv, capsys):
    """A wrong command line ends with 2 and says how it should look."""
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: edge-appliance" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError(Exit.UNREACHABLE, "no daemon"), 69),
        (PathError("/x", "Read-only file system"), 73),
        (ConfigError([ConfigFault("f", 1, "a", "b")]), 78),
        (QueryError("invalid", "bad SQL"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_exit_codes(monkeypatch, capsys, error, code):
    """What went wrong is one line and an exit code, never a traceback; an interrupt says nothing."""

    def fail(_):
        raise error

    monkeypatch.setattr(version, "execute", fail)
    assert cli.main(["version"]) == code
    assert capsys.readouterr().err == (f"{error}\n" if str(error) else "")


def test_reader_that_leaves_is_no_error():
    """`edge-appliance … | head -1` ends quietly."""
    code = (
        "import sys; from edge_appliance.cli import main, version\n"
        "def flood(_):\n"
        "    while True: print('x' * 1000)\n"
        "version.execute = flood\n"
        "sys.exit(main.main(['version']))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 141


def test_no_arguments(capsys):
    """Without arguments the commands are listed, and it is a usage error all the same."""
    assert cli.main([]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert all(f"  {name} " in output.err for name in cli.COMMANDS)


def test_full_disk_under_the_output():
    """Output that the disk does not take is one line and 1, not a traceback."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device, not a path of ours
        ended = subprocess.run(
            [sys.executable, "-m", "edge_appliance", "version"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, b"the output cannot be written: No space left on device\n")


def test_option_before_the_command(capsys):
    """An option before the command is told where it belongs, instead of its value being taken for a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--config", "my.toml", "status"])
    assert ended.value.code == 2
    assert "--config: options come after the command" in capsys.readouterr().err


def test_version_as_an_option(capsys):
    """`--version` says the same as the command, as with other programs."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == text


def test_version(capsys):
    """The version is one line; --verbose adds the packages."""
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("edge-appliance 0.")
    assert cli.main(["version", "--verbose"]) == 0
    text = capsys.readouterr().out
    assert "paho-mqtt 2." in text
    assert "not installed" not in text


def test_module_entry():
    """`python -m edge_appliance` is the same program."""
    found = subprocess.run(
        [sys.executable, "-m", "edge_appliance", "version"], capture_output=True, text=True, check=True, timeout=30
    )
    assert found.stdout.startswith("edge-appliance ")


@pytest.mark.parametrize("module", ["version", "check_config", "query", "status", "wal", "run"])
def test_commands_import_nothing_heavy(module):
    """A short question gets a quick answer: no command but `run`, and that only later, loads the big packages."""
    found = run_python(
        f"import sys, edge_appliance.cli.main, edge_appliance.cli.{module}\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert (found.stdout, found.stderr) == ("[]\n", "")
