"""What the Debian package is made from agrees with the code: versions, pins, man pages, completion, examples."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import edge_appliance
from edge_appliance import config
from edge_appliance.cli import main as command_line
from edge_appliance.config_reader import section_keys

ROOT = Path(__file__).resolve().parents[2]
DEB = ROOT / "packaging/deb"


def generated(script: str, *arguments: str) -> str:
    """What one of the generators prints."""
    command = [sys.executable, DEB / script, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def plain(page: str) -> str:
    """A man page without what steers roff."""
    return re.sub(r"\\f[BIR]", "", page).replace("\\-", "-").replace("\\(aq", "'")


def test_changelog_names_the_version_of_the_code():
    """The package's version is the code's."""
    first = (ROOT / "debian/changelog").read_text().splitlines()[0]
    assert first.startswith(f"edge-appliance ({edge_appliance.__version__})")


def test_lock_holds_every_dependency():
    """Each dependency is pinned, and what builds the package, too: a new one cannot be forgotten."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = "".join((DEB / f"lock/{name}.txt").read_text() for name in ("shipped", "from_source", "build"))
    names = set(re.findall(r"(?m)^([a-z0-9-]+)==", pinned))
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    assert {re.split(r"[<>=~]", text)[0].lower() for text in needed} <= names


def test_lock_has_a_hash_for_every_pin():
    """No file is taken without its hash."""
    for name in ("shipped", "from_source", "build"):
        text = (DEB / f"lock/{name}.txt").read_text()
        for entry in re.split(r"\n(?=[a-z])", text)[1:]:
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_man_page_of_commands_is_complete():
    """Every command with all its options is in the man page, in the words of its --help."""
    page = plain(generated("man_page.py", "commands"))
    for name in command_line.COMMANDS:
        assert f".SS {name}" in page
        for action in command_line.parser_of(name, command_line.load(name))._actions:
            if action.help and "SUPPRESS" not in action.help and action.dest != "help":
                assert action.help.replace("%%", "%") in page
                assert all(option in page for option in action.option_strings)


def test_man_page_of_the_configuration_is_complete():
    """Every key is in the man page with its default, and all of them are explained."""
    page = plain(generated("man_page.py", "configuration"))
    for type_ in (config.NodeSection, config.MqttSection, config.TlsSection, config.WalSection, config.HttpSection):
        for key in section_keys(type_).values():
            assert re.search(rf"(?m)^{key.name} = ", page), key.name
    assert 'group_delay = "20ms"\nHow long an acknowledgement may wait' in page
    assert "\n.TP\n.SS" not in page, "a key without a word about it"


def test_man_pages_need_only_what_the_build_installs():
    """The parsers of all commands load with the few packages that the package's build has at hand for them."""
    installed = re.search(r"--find-links .*\n    (.*)\n", (DEB / "generate.sh").read_text())
    assert installed is not None
    present = {*installed[1].split(), "edge-appliance"}
    absent = {name for name, owners in packages_distributions().items() if not present & set(owners)}
    script = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(absent)!r}))\n"
        "from edge_appliance.cli import main\n"
        "for name in main.COMMANDS: main.parser_of(name, main.load(name))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("page", ["commands", "configuration"])
def test_man_page_has_no_fault(page, tmp_path):
    """The formatter takes every line of it."""
    file = tmp_path / "page.8"
    file.write_text(generated("man_page.py", page))
    shown = subprocess.run(["man", "--warnings", "--local-file", file], capture_output=True, text=True, check=True)
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["che"], ["check-config"]),
        (["query", "-o", "par"], ["parquet"]),
        (["wal", "ver"], ["verify"]),
        (["status", "--j"], ["--json"]),
    ],
)
def test_completion(words, expected, tmp_path):
    """The shell completes commands, options and the values they take."""
    script = tmp_path / "completion"
    script.write_text(generated("completion.py"))
    typed = " ".join(["edge-appliance", *words])
    ask = (
        '_init_completion() { cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"; '
        'words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }; _filedir() { :; }; '
        f'. "{script}"; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _edge_appliance; echo "${{COMPREPLY[@]}}"'
    )
    answer = subprocess.run(["bash", "-c", ask], check=True, capture_output=True, text=True).stdout.split()
    assert answer == expected


def test_shipped_conffile_changes_nothing(tmp_path):
    """As installed, everything is at its default, and with the '#' taken off it names real keys."""
    text = (ROOT / "debian/edge-appliance.toml").read_text()
    file = tmp_path / "edge-appliance.toml"
    file.write_text(text)
    assert config.load(file).mqtt == config.load().mqtt
    file.write_text(re.sub(r"(?m)^#(?=[a-z\[])", "", text))
    assert config.load(file).mqtt == config.load().mqtt


@pytest.mark.parametrize("path", sorted((ROOT / "config/examples").glob("*.toml")), ids=lambda path: path.name)
def test_example_loads(path, tmp_path):
    """Each example is taken without a fault and changes something."""
    (tmp_path / "conf.d").mkdir()
    shutil.copy(path, tmp_path / "conf.d")
    (tmp_path / "edge-appliance.toml").touch()
    assert config.describe(config.load(tmp_path / "edge-appliance.toml")) != config.describe(config.load())


def test_every_example_says_how_to_use_it():
    """Each example says where it goes and what applies it."""
    for path in [*(ROOT / "config/examples").iterdir(), *(ROOT / "systemd/examples").iterdir()]:
        head = path.read_text().split("\n[")[0]
        assert "Copy to /etc/" in head, path.name
        assert "systemctl restart edge-appliance" in head, path.name
