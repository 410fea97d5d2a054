"""The configuration's files: read, merged in name order, and every key's file and line remembered.

tomli checks the syntax but keeps no positions, so `locate` finds the lines of keys in text that tomli has accepted.
What the keys mean is not known here.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import tomli

from edge_appliance.errors import ConfigError, ConfigFault

KeyPath = tuple[str | int, ...]
"""Where a value stands: table names, indexes of arrays of tables, key."""

Table = dict[str, object]


@dataclass(slots=True)
class Document:
    """The merged files. A later file's values win; its arrays of tables are appended."""

    values: Table = field(default_factory=dict)
    places: dict[KeyPath, tuple[str, int]] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def place(self, path: KeyPath) -> tuple[str, int]:
        """File and line of the key, or of the nearest table around it."""
        while path:
            if path in self.places:
                return self.places[path]
            path = path[:-1]
        return (str(self.files[-1]) if self.files else "(defaults)"), 0


def read_documents(main: Path, *, is_required: bool) -> Document:
    """Read `main` and `conf.d/*.toml` beside it; raises ConfigError with the faults of all files."""
    document = Document()
    faults: list[ConfigFault] = []
    for path in [main, *_fragments(main.parent / "conf.d", faults)]:
        try:
            text = path.read_bytes().decode("utf-8")
            values = tomli.loads(text)
        except FileNotFoundError:
            if path == main and is_required:
                faults.append(ConfigFault(str(path), 0, "", "no such file; --config names the file to use"))
            continue
        except OSError as error:
            faults.append(ConfigFault(str(path), 0, "", _unreadable(path, error)))
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            faults.append(ConfigFault(str(path), line, "", "not UTF-8 text"))
        except tomli.TOMLDecodeError as error:
            faults.append(ConfigFault(str(path), error.lineno, "", f"column {error.colno}: {error.msg}"))
        else:
            document.files.append(path)
            _merge(document, values, locate(text), path)
    if faults:
        raise ConfigError(faults)
    return document


def _fragments(directory: Path, faults: list[ConfigFault]) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".toml" and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # Skipping it with a warning would start the service with half of its configuration.
        faults.append(ConfigFault(str(directory), 0, "", _unreadable(directory, error)))
        return []


def _unreadable(path: Path, error: OSError) -> str:
    for candidate in (path, *path.parents):
        try:
            status = candidate.stat()
        except OSError:
            continue
        which = "" if candidate == path else f"{candidate} has "
        return f"{error.strerror}; {which}mode {stat.S_IMODE(status.st_mode):04o}, uid {status.st_uid}"
    return error.strerror or str(error)


def _merge(document: Document, values: Table, lines: dict[KeyPath, int], path: Path) -> None:
    shifts: dict[KeyPath, int] = {}
    _merge_table(document.values, values, (), shifts)
    for key_path, line in lines.items():
        document.places[_shifted(key_path, shifts)] = (str(path), line)


def _merge_table(into: Table, values: Table, at: KeyPath, shifts: dict[KeyPath, int]) -> None:
    for key, value in values.items():
        present = into.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge_table(present, value, (*at, key), shifts)
        elif _is_array_of_tables(present) and _is_array_of_tables(value):
            assert isinstance(present, list) and isinstance(value, list)  # noqa: S101 - for the type checker
            shifts[(*at, key)] = len(present)
            present.extend(value)
        else:
            into[key] = value


def _is_array_of_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _shifted(path: KeyPath, shifts: dict[KeyPath, int]) -> KeyPath:
    """The path with the index behind an appended array moved by what was there before."""
    for prefix, shift in shifts.items():
        length = len(prefix)
        if path[:length] == prefix and len(path) > length and isinstance(index := path[length], int):
            return (*prefix, index + shift, *path[length + 1 :])
    return path


_KEY: Final = r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'"""
_KEY_PART: Final = re.compile(_KEY)
_DOTTED: Final = rf"(?:{_KEY})(?:[ \t]*\.[ \t]*(?:{_KEY}))*"
_STATEMENT: Final = re.compile(
    rf"[ \t]*(?:\[\[[ \t]*(?P<array>{_DOTTED})[ \t]*\]\]"
    rf"|\[[ \t]*(?P<table>{_DOTTED})[ \t]*\]"
    rf"|(?P<key>{_DOTTED})[ \t]*=)"
)
# What a value is made of, as far as finding its end needs: strings of four kinds, comments, brackets, the rest.
_PIECE: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""+|\'\'\'.*?\'\'\'+|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[{]|[\]}]|\n|[^"\'#\[\]{}\n]+|.',
    re.DOTALL,
)


def locate(text: str) -> dict[KeyPath, int]:
    """Return the line, from 1, of every table header and key in TOML text that tomli has accepted.

    Keys inside inline tables and arrays are not listed: the key that holds them is.
    """
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    offset, line = 0, 1
    while offset < len(text):
        match = _STATEMENT.match(text, offset)
        if match is None:
            end = text.find("\n", offset)
            end = len(text) if end < 0 else end
        elif match["key"]:
            lines.setdefault((*table, *_names(match["key"])), line)
            end = _value_end(text, match.end())
        else:
            names = _resolved(_names(match["array"] or match["table"]), counts, is_array=bool(match["array"]))
            table = names
            lines.setdefault(table, line)
            end = _value_end(text, match.end())
        line += text.count("\n", offset, end) + 1
        offset = end + 1
    return lines


def _names(dotted: str) -> tuple[str, ...]:
    """Split a dotted key; escapes in a quoted one are read as TOML reads them."""
    parts = _KEY_PART.findall(dotted)
    return tuple(str(tomli.loads(f"k = {part}")["k"]) if part[0] in "\"'" else part for part in parts)


def _resolved(names: tuple[str, ...], counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    """The header's path with the current index behind every array of tables on the way."""
    path: KeyPath = ()
    for position, part in enumerate(names):
        path = (*path, part)
        if is_array and position == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _value_end(text: str, offset: int) -> int:
    """Offset of the newline that ends the value, outside of strings, comments and brackets."""
    depth = 0
    while offset < len(text):
        match = _PIECE.match(text, offset)
        assert match is not None, "the last alternative matches anything"  # noqa: S101 - an invariant of the pattern
        piece = match[0]
        if piece == "\n" and depth == 0:
            return offset
        depth += (piece in "[{") - (piece in "]}")
        offset = match.end()
    return offset
