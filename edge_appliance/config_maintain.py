"""The section [maintain] and the tables [[database]]: how parts are kept in order, and for how long rows are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from edge_appliance import config_values as values
from edge_appliance.config_reader import Reader
from edge_appliance.config_values import Key

MAX_DATABASES: Final = 200


class DatabaseSettings(msgspec.Struct, frozen=True):
    """[[database]]: a database with rules of its own."""

    name: str
    retention_ns: int | None
    """Rows older than this are not shown, and deleted day by day; None: kept for ever."""
    max_bytes: int | None
    """Of its parts in a store that is a directory; the oldest days go first. None: no limit."""


class MaintainSection(msgspec.Struct, frozen=True):
    """[maintain]: merges, retention and deletions, in the background."""

    # Too short: planning wakes a sleeping gateway. Too long: expired rows keep their disk.
    period_s: Annotated[float, Key("period", "1m", values.duration_s("10ms", "1d"))]
    # Of a merged part. It is sent as a whole: too large for a thin link, it never arrives.
    merge_target_bytes: Annotated[int, Key("merge_target", "64MiB", values.size("64KiB", "1GiB"))]
    # Parts that the store has: merged when their UTC date is over, at any time, or never. With object storage a merge
    # sends their rows once more.
    merge_stored: Annotated[
        Literal["closed", "all", "never"], Key("merge_stored", "closed", values.one_of("closed", "all", "never"))
    ]
    # How long late rows of a date are waited for.
    closed_after_s: Annotated[float, Key("closed_after", "1h", values.duration_s("0s", "30d"))]
    # "trusted": the clock counts as right although the kernel does not know it to be, as in some virtual machines.
    clock: Annotated[
        Literal["synchronised", "trusted"], Key("clock", "synchronised", values.one_of("synchronised", "trusted"))
    ]
    databases: tuple[DatabaseSettings, ...]


DATABASE_KEYS: Final[Mapping[str, Key]] = {
    "name": Key("name", "edge", values.name(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name of letters, digits and '_.-'")),
    "retention_ns": Key("retention", "", values.optional(values.duration_ns("1h", "36500d"))),
    "max_bytes": Key("max_bytes", "", values.optional(values.size("1MiB"))),
}


def read_databases(reader: Reader, *, is_directory: bool) -> tuple[DatabaseSettings, ...]:
    """The tables [[database]]; `is_directory`: whether the store is one."""
    found: dict[str, DatabaseSettings] = {}
    for index, table in enumerate(reader.tables(("database",))):
        path = ("database", index)
        fields: dict[str, Any] = reader.fields(path, DATABASE_KEYS, table)
        settings = DatabaseSettings(**fields)
        if "name" not in table:
            reader.fault(path, "name is missing: which database are these rules for?")
        elif settings.name in found and reader.are_sound((*path, "name")):
            reader.fault((*path, "name"), "there are rules for this database already")
        if settings.max_bytes is not None and not is_directory:
            reader.fault(
                (*path, "max_bytes"), "is for a file:// store; copies of parts in object storage: store.keep_local"
            )
        found[settings.name] = settings
        if index == MAX_DATABASES:
            reader.fault(path, f"more than {MAX_DATABASES} databases")
            break
    return tuple(found.values())
