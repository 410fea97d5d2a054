"""Writes the man pages: of the commands from their parsers, of the configuration from its sections and the sample file.

man_page.py commands         edge-appliance(8)
man_page.py configuration    edge-appliance.toml(5)

The words around them are in edge-appliance.8.in and edge-appliance.toml.5.in.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

import edge_appliance
from edge_appliance import config
from edge_appliance.cli import main as command_line
from edge_appliance.cli.command import Exit
from edge_appliance.config_reader import section_keys
from edge_appliance.config_values import Key
from edge_appliance.journal import EVENTS, message_id

HERE: Final = Path(__file__).resolve().parent
SAMPLE: Final = HERE.parents[1] / "config" / "edge-appliance.toml"

EXITS: Final = {
    Exit.OK: "Done.",
    Exit.FAILED: "It failed; one sentence on standard error says why.",
    Exit.USAGE: "Wrong usage.",
    Exit.UNREACHABLE: "The daemon does not answer.",
    Exit.CANNOT_CREATE: "A path cannot be created, or another process uses it.",
    Exit.CONFIGURATION: "The configuration has faults; all of them are named. systemd does not start it again.",
    Exit.INTERRUPTED: "Interrupted by Ctrl-C.",
    Exit.BROKEN_PIPE: "Nobody read the output.",
}


def main(arguments: Sequence[str]) -> int:
    """Print the page that was asked for."""
    match arguments:
        case ["commands"]:
            parts = {"COMMANDS": commands(), "EXITS": exits(), "EVENTS": events()}
            page = fill((HERE / "edge-appliance.8.in").read_text(), parts)
        case ["configuration"]:
            page = fill((HERE / "edge-appliance.toml.5.in").read_text(), {"SECTIONS": sections(SAMPLE.read_text())})
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    print(page, end="")
    return 0


def fill(template: str, parts: Mapping[str, Iterator[str]]) -> str:
    """Replace each line @NAME@ by its part, and @VERSION@ anywhere."""
    for name, lines in parts.items():
        template = template.replace(f"@{name}@\n", "".join(f"{line}\n" for line in lines))
    return template.replace("@VERSION@", edge_appliance.__version__)


def roff(text: str) -> str:
    """Text that roff takes literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"(?m)^\.", r"\\&.", text)


# The commands


def commands() -> Iterator[str]:
    """Each command with its options, as its --help states them, and its examples."""
    for name in command_line.COMMANDS:
        command = command_line.load(name)
        parser = command_line.parser_of(name, command)
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        yield f".SS {roff(name)}"
        yield from usage(parser, actions)
        yield ".PP"
        yield roff(str(parser.description))
        for action in actions:
            if not isinstance(action, argparse._HelpAction):
                yield ".TP"
                yield spelling(action)
                yield roff(str(action.help or "").replace("%%", "%"))
        yield ".PP"
        yield "Examples:"
        yield ".PP\n.EX"
        yield roff(command.EXAMPLES)
        yield ".EE"


def usage(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> Iterator[str]:
    """The synopsis of one command, in one line."""
    words = [f"\\fB{roff(parser.prog)}\\fR"]
    for action in actions:
        if not isinstance(action, argparse._HelpAction):
            word = spelling(action, is_short=True)
            words.append(word if action.required else f"[{word}]")
    yield ".PP"
    yield " ".join(words)


def spelling(action: argparse.Action, *, is_short: bool = False) -> str:
    """An option or operand as it is typed."""
    value = ""
    if action.nargs != 0:
        choices = "|".join(map(str, action.choices)) if action.choices else ""
        value = roff(str(action.metavar or choices or action.dest.upper()))
        value = f"\\fI{value}\\fR"
    if not action.option_strings:
        return value
    names = action.option_strings[-1:] if is_short else action.option_strings
    return ", ".join(f"\\fB{roff(name)}\\fR" for name in names) + (f" {value}" if value else "")


def exits() -> Iterator[str]:
    """The exit codes."""
    for code in Exit:
        yield f".TP\n.B {code.value}"
        yield roff(EXITS[code])


def events() -> Iterator[str]:
    """Entries of the journal that can be waited for."""
    for event, meaning in EVENTS.items():
        yield f".TP\n.B {roff(event)}"
        yield f"{roff(meaning)}\n.br\nMESSAGE_ID={message_id(event)}"


# The configuration


def sections(sample: str) -> Iterator[str]:
    """Each section with its keys: name and default from the code, the words from the sample file."""
    words = explanations(sample)
    for name, keys in all_keys().items():
        yield f".SS {roff(f'[[{name}]]' if name == 'mqtt.route' else f'[{name}]')}"
        yield roff(words.get(name, ""))
        text = ""
        for number, key in enumerate(keys):
            own = words.get(f"{name}.{key.name}", "")
            if number and own:
                yield roff(text)
            # A key without words of its own is explained together with the one before.
            yield ".TQ" if number and not own else ".TP"
            yield f"\\fB{roff(key.name)}\\fR = {roff(written(key.default))}"
            text = own or text
        yield roff(text)


def all_keys() -> dict[str, list[Key]]:
    """The keys of every section, by its name."""
    found: dict[str, list[Key]] = {}
    for field in msgspec.structs.fields(config.Config):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found[field.name] = list(section_keys(field.type).values())
            if field.name == "mqtt":
                found["mqtt.tls"] = list(section_keys(config.TlsSection).values())
                found["mqtt.route"] = list(config.ROUTE_KEYS.values())
    return found


def explanations(sample: str) -> dict[str, str]:
    """The comment above each key and section header of the sample file, where keys stand commented out."""
    found: dict[str, str] = {}
    section, comment = "", []
    for line in sample.splitlines():
        if match := re.fullmatch(r"#?\[+([a-z.]+)\]+", line):
            section = match[1]
            if comment:
                found[section] = " ".join(comment)
            comment = []
        elif match := re.match(r"#?([a-z_]+) = ", line):
            if comment:
                found[f"{section}.{match[1]}"] = " ".join(comment)
            comment = []
        elif line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        else:
            comment = []
    return found


def written(value: object) -> str:
    """A default as TOML."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
    return str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
