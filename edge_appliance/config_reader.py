"""From merged TOML values to parsed fields, collecting a fault for everything that is wrong on the way.

A key that has a fault counts as its default from there on, and relations between keys are only judged when every key
in them is sound: one mistake gives one fault.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from edge_appliance.config_files import Document, KeyPath, Table
from edge_appliance.config_values import MAX_SECRET_BYTES, Key, Secret
from edge_appliance.errors import ConfigFault


def section_keys(section: type) -> dict[str, Key]:
    """Return the keys a section declares, by field; fields without one are filled in by the loader."""
    hints = typing.get_type_hints(section, include_extras=True)
    metadata = {field: getattr(hint, "__metadata__", ()) for field, hint in hints.items()}
    return {field: key for field, found in metadata.items() for key in found if isinstance(key, Key)}


class Reader:
    """Reads sections out of one document and keeps all faults."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._faulty: set[KeyPath] = set()
        self.faults: list[ConfigFault] = []

    def fault(self, path: KeyPath, message: str) -> None:
        """Record a fault at the key or table `path`."""
        file, line = self._document.place(path)
        self.faults.append(ConfigFault(file, line, ".".join(part for part in path if isinstance(part, str)), message))
        self._faulty.add(path)

    def are_sound(self, *paths: KeyPath) -> bool:
        """Whether none of these keys has a fault yet."""
        return not self._faulty.intersection(paths)

    def is_stated(self, path: KeyPath) -> bool:
        """Whether a file states this key."""
        return path in self._document.places

    def relate(self, paths: Iterable[KeyPath], is_broken: Callable[[], bool], message: Callable[[], str]) -> None:
        """Record a fault when a relation between sound keys is broken, at the first of them that a file states."""
        keys = tuple(paths)
        if self.are_sound(*keys) and is_broken():
            self.fault(next((key for key in keys if self.is_stated(key)), keys[0]), message())

    def table(self, path: KeyPath) -> Table | None:
        """Return the table at `path`; None when it is absent or, with a fault, when it is something else."""
        value: object = self._document.values
        for part in path:
            value = value.get(str(part)) if isinstance(value, dict) else None
        if value is None or isinstance(value, dict):
            return value
        if self.are_sound(path):  # it may be asked for twice: for itself, and for what is inside
            self.fault(path, f"expected a table, written [{'.'.join(map(str, path))}]")
        return None

    def tables(self, path: KeyPath) -> list[Table]:
        """Return the array of tables at `path`; empty when absent or, with a fault, when it is something else."""
        parent = self.table(path[:-1]) or {}
        values = parent.get(str(path[-1]), [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self.fault(path, f"expected tables, each written [[{'.'.join(map(str, path))}]]")
            return []
        return values

    def fields(self, path: KeyPath, keys: Mapping[str, Key], values: Table | None, others: Iterable[str] = ()) -> Table:
        """Return the parsed value of each field; `others` are names of tables inside that are read separately."""
        stated = values or {}
        self._refuse_unknown(path, stated, [*(key.name for key in keys.values()), *others])
        return {field: self._parsed((*path, key.name), key, stated) for field, key in keys.items()}

    def file(self, path: KeyPath, file: Path) -> bytes | None:
        """Return the content of a file that the key names; None, with a fault, when it cannot be read."""
        try:
            return file.read_bytes()
        except OSError as error:
            self.fault(path, f"{file}: {error.strerror}")
            return None

    def secret_file(self, path: KeyPath, file: Path | None) -> Secret | None:
        """Return the one line that the file holds; None without a file or, with a fault, without a usable line."""
        content = self.file(path, file) if file is not None else None
        if content is None:
            return None
        try:
            # A line end after the secret does not belong to it: editors and echo leave one.
            secret = content.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            self.fault(path, f"{file} is not UTF-8 text")
            return None
        if not secret or any(ord(c) < 32 for c in secret):
            self.fault(path, f"{file} must hold one line with the secret" if secret else f"{file} is empty")
            return None
        if len(content) > MAX_SECRET_BYTES:
            self.fault(path, f"{file} holds {len(content):,} bytes; a secret has {MAX_SECRET_BYTES:,} at most")
            return None
        return Secret(secret)

    def credential(self, path: KeyPath, name: str, directory: Path) -> Secret | None:
        """Return a credential that systemd has put into `directory`."""
        # LoadCredential= of a directory names its files by the credential's id, an underscore and the file's name.
        for file in (directory / name, directory / f"cred_{name}"):
            if file.is_file():
                return self.secret_file(path, file)
        self.fault(path, f"no credential {name!r} in {directory}: put it into /etc/edge-appliance/credentials/")
        return None

    def _parsed(self, path: KeyPath, key: Key, stated: Table) -> object:
        if key.name in stated:
            try:
                return key.parse(stated[key.name])
            except ValueError as error:
                self.fault(path, str(error))
        return key.parse(key.default)

    def _refuse_unknown(self, path: KeyPath, stated: Table, known: list[str]) -> None:
        for unknown in stated:
            if unknown not in known:
                near = difflib.get_close_matches(unknown, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(sorted(known))}"
                what = "section" if isinstance(stated[unknown], dict) else "key"
                self.fault((*path, unknown), f"unknown {what}; {hint} (or it needs a newer release)")

    def top_level(self, sections: Iterable[str]) -> None:
        """Refuse everything on the top level that is no section."""
        self._refuse_unknown((), self._document.values, list(sections))
