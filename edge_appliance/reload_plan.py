"""What a reload changes: pure comparison of two configurations, key by key.

A live key takes effect at once; the others are named, and wait for a restart. Nothing else knows which are which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from edge_appliance.config import Config
from edge_appliance.config_reader import section_keys

LIVE: Final = frozenset(
    {
        "log.level",
        "mqtt.password",
        "mqtt.route",
        "mqtt.tls",
        "segment.max_age",
        "segment.max_bytes",
        "wal.max_bytes",
        "wal.min_free",
    }
)
"""`mqtt.password` and `mqtt.tls` are used from the next connection on; the one there is stays."""

_BOUND_TO_BUFFER: Final = frozenset({"segment.max_bytes", "wal.max_bytes"})
"""Checked against memory.buffer_limit: when that waits for a restart, they wait with it."""

_OTHER_NAMES: Final = {"mqtt.routes": "mqtt.route", "http.token": "http.token_file", "maintain.databases": "database"}
"""Of fields that the loader fills in: the key a person would look for."""


class Plan(NamedTuple):
    """What becomes of a new configuration."""

    config: Config
    """The one in effect from now on: the old one with the live keys of the new one."""
    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


class Outcome(NamedTuple):
    """What a reload did, for who asked."""

    faults: str = ""
    """All faults, one a line; then nothing was changed."""
    applied: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.faults:
            return f"the old configuration stays, the new one has faults:\n{self.faults}"
        parts = [f"applied: {', '.join(self.applied)}"] if self.applied else []
        parts += [f"needs a restart: {', '.join(self.needs_restart)}"] if self.needs_restart else []
        return "; ".join(parts) or "nothing has changed"


def plan(old: Config, new: Config) -> Plan:
    """Compare, and take over what can be changed in a running process."""
    changed = {name: (section, field) for name, section, field in _fields(new) if _differs(old, new, section, field)}
    waits = {name for name in changed if name not in LIVE}
    if "memory.buffer_limit" in changed:
        waits |= _BOUND_TO_BUFFER & changed.keys()
    sections: dict[str, dict[str, Any]] = {}
    for name, (section, field) in changed.items():
        if name not in waits:
            sections.setdefault(section, {})[field] = getattr(getattr(new, section), field)
    replaced = {name: msgspec.structs.replace(getattr(old, name), **values) for name, values in sections.items()}
    config = msgspec.structs.replace(old, **replaced, files=new.files, notices=new.notices)
    return Plan(config, tuple(name for name in changed if name not in waits), tuple(n for n in changed if n in waits))


def _fields(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield (name for people, section, field) of every value."""
    for top in msgspec.structs.fields(config):
        section = getattr(config, top.name)
        if isinstance(section, msgspec.Struct):
            keys = section_keys(type(section))
            for field in msgspec.structs.fields(section):
                key = keys.get(field.name)
                name = f"{top.name}.{key.name if key else field.name}"
                yield _OTHER_NAMES.get(name, name), top.name, field.name


def _differs(old: Config, new: Config, section: str, field: str) -> bool:
    return bool(getattr(getattr(old, section), field) != getattr(getattr(new, section), field))
