"""Prints the completion for bash, made from the parsers of the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from edge_appliance.cli import main as command_line

HEAD = """\
# bash completion for edge-appliance; made from its own options.

_edge_appliance()
{
    local cur prev words cword
    _init_completion || return
    if [[ $cword -eq 1 ]]; then
        COMPREPLY=($(compgen -W "%(commands)s --help --version" -- "$cur"))
        return
    fi
    case "${words[1]}:$prev" in
%(values)s
    esac
    case "${words[1]}" in
%(words)s
    esac
} &&
    complete -F _edge_appliance edge-appliance
"""
FILES = "_filedir"


def main() -> int:
    """Print it."""
    values, words = [], []
    for name in command_line.COMMANDS:
        parser = command_line.parser_of(name, command_line.load(name))
        actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        options = " ".join(option for action in actions for option in action.option_strings)
        operands = [action for action in actions if not action.option_strings]
        choices = " ".join(choice for action in operands for choice in action.choices or ())
        takes_path = any(action.metavar == "PATH" for action in operands)
        words.append(f'        {name})\n            COMPREPLY=($(compgen -W "{options} {choices}" -- "$cur"))')
        words += [f"            [[ $cur == -* ]] || {FILES}"] if takes_path else []
        words.append("            ;;")
        values += list(option_values(name, actions))
    commands = " ".join(command_line.COMMANDS)
    print(HEAD % {"commands": commands, "values": "\n".join(values), "words": "\n".join(words)}, end="")
    return 0


def option_values(name: str, actions: list[argparse.Action]) -> Iterator[str]:
    """The cases for what follows an option that takes a value."""
    for action in actions:
        if not action.option_strings or action.nargs == 0:
            continue
        pattern = "|".join(f"{name}:{option}" for option in action.option_strings)
        if action.choices:
            reply = f'COMPREPLY=($(compgen -W "{" ".join(map(str, action.choices))}" -- "$cur"))'
        else:
            reply = FILES if action.metavar == "FILE" else "COMPREPLY=()"
        yield f"        {pattern})\n            {reply}\n            return\n            ;;"


if __name__ == "__main__":
    sys.exit(main())
