"""Routes: which topics are subscribed, and what a topic says about its messages before they are read.

A template is a topic filter with names: `plants/{site}/+/{device}/lp` subscribes `plants/+/+/+/lp` and
turns the second and fourth level into the tags `site` and `device`. `/a/b` has three levels, the first
empty. A filter that begins with a wildcard does not match topics that begin with `$`. A shared
subscription is written `$share/<group>/<template>`; its group is no part of the topic.

Pure: knows no client and no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from edge_appliance.core.delivery import RESERVED_COLUMNS, RESERVED_PREFIX, Origin, Precision, Tags

MAX_FILTER_BYTES: Final = 65_535
"""Longest string of the protocol: its length is sent in two bytes."""

MAX_CACHED_TOPICS: Final = 10_000
MAX_CACHED_BYTES: Final = 1 << 22
"""Topics whose origin is remembered, and their length together. At the cap all are forgotten at once: a client that
invents topics costs a lookup each, and no memory."""

_SHARE: Final = "$share"


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed topic template."""

    filter: str
    """What is sent in SUBSCRIBE."""
    levels: tuple[str, ...]
    """Levels to compare with those of a topic: literals, `+`, and `#` last; without `$share/<group>`."""
    captures: tuple[tuple[str, int], ...]
    """Tag keys with the index of their level, sorted by key."""
    is_shared: bool


def parse_template(template: str) -> Template:
    """Take a topic template apart; ValueError says what is wrong with it."""
    _check_text(template)
    prefix, levels = _split_share(template.split("/"))
    captures: dict[str, int] = {}
    for index, level in enumerate(levels):
        name = _capture_name(level)
        if name is None:
            _check_level(level, is_last=index == len(levels) - 1)
        elif name in captures:
            raise ValueError(f"{{{name}}} is used twice")
        else:
            captures[name] = index
    plain = tuple("+" if index in captures.values() else level for index, level in enumerate(levels))
    subscribed = "/".join((*prefix, *plain))
    if len(subscribed.encode()) > MAX_FILTER_BYTES:
        raise ValueError(f"the topic filter is longer than {MAX_FILTER_BYTES} bytes")
    return Template(subscribed, plain, tuple(sorted(captures.items())), is_shared=bool(prefix))


def _check_text(template: str) -> None:
    if not template:
        raise ValueError("a topic must not be empty")
    if "\0" in template:
        raise ValueError("a topic must not contain a NUL character")
    try:
        template.encode()
    except UnicodeEncodeError:
        raise ValueError("a topic must be valid UTF-8") from None


def _split_share(levels: list[str]) -> tuple[list[str], list[str]]:
    """Split into `$share` and group, and the levels behind them; the first is empty for a plain template."""
    if levels[0] != _SHARE:
        return [], levels
    if len(levels) < 3 or levels[2:] == [""]:
        raise ValueError("a shared subscription is written $share/<group>/<topic>")
    group = levels[1]
    if not group or any(sign in group for sign in "+#{}"):
        raise ValueError("the group of a shared subscription needs a name without +, #, { or }")
    return levels[:2], levels[2:]


def _capture_name(level: str) -> str | None:
    """Name in `{name}`; None for a level that captures nothing."""
    if "{" not in level and "}" not in level:
        return None
    name = level[1:-1]
    if level != f"{{{name}}}" or "{" in name or "}" in name:
        raise ValueError(f"{level!r}: {{name}} must fill its level alone")
    if not name:
        raise ValueError("{} needs a tag name")
    if "+" in name or "#" in name:
        raise ValueError(f"{level!r}: a tag name must not contain + or #")
    if name in RESERVED_COLUMNS or name.startswith(RESERVED_PREFIX):
        raise ValueError(f"{{{name}}}: this tag name is reserved; choose another")
    return name


def _check_level(level: str, *, is_last: bool) -> None:
    if "#" in level and not (level == "#" and is_last):
        raise ValueError("# must be the last level and fill it alone")
    if "+" in level and level != "+":
        raise ValueError(f"{level!r}: + must fill its level alone")


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """What the configuration says about one route."""

    template: str
    database: str
    precision: Precision = "auto"
    qos: int = 1
    min_time_ns: int | None = None
    """Earliest time a line may state; None leaves it open."""
    max_future_ns: int | None = None
    """How far beyond its arrival a line's time may lie; None leaves it open."""


class Route:
    """One topic template with its settings; ValueError when the template has a fault."""

    def __init__(self, settings: RouteSettings) -> None:
        template = parse_template(settings.template)
        self.settings = settings
        self.filter = template.filter
        self.is_shared = template.is_shared
        self.captures = tuple(name for name, _ in template.captures)
        self._places = template.captures
        self._levels = template.levels

    def matches(self, levels: Sequence[str]) -> bool:
        """Whether a topic of these levels belongs to this route."""
        own = self._levels
        if levels[0].startswith("$") and own[0] in ("+", "#"):
            return False
        if own[-1] == "#":
            # `a/#` also matches `a`.
            own = own[:-1]
            levels = levels[: len(own)]
        return len(own) == len(levels) and all(mine in ("+", level) for mine, level in zip(own, levels, strict=True))

    def tags(self, levels: Sequence[str]) -> Tags:
        """Tags that the captured levels of a matching topic give; an empty level gives none."""
        return tuple((name, levels[index]) for name, index in self._places if levels[index])


class RouteTable:
    """The routes in order. The first one that matches a topic has it."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._origins: dict[str, Origin | None] = {}
        self._cached_bytes = 0

    @property
    def filters(self) -> list[tuple[str, int]]:
        """Distinct filters in order of first use, each with the highest QoS asked for it."""
        wanted: dict[str, int] = {}
        for route in self.routes:
            wanted[route.filter] = max(wanted.get(route.filter, 0), route.settings.qos)
        return list(wanted.items())

    def match(self, topic: str) -> Origin | None:
        """Origin of messages on `topic`, the same object each time it is asked; None when no route has it."""
        try:
            return self._origins[topic]
        except KeyError:
            pass
        self._cached_bytes += len(topic)
        if len(self._origins) >= MAX_CACHED_TOPICS or self._cached_bytes > MAX_CACHED_BYTES:
            self._origins.clear()
            self._cached_bytes = len(topic)
        origin = self._origins[topic] = self._find(topic)
        return origin

    def _find(self, topic: str) -> Origin | None:
        levels = topic.split("/")
        for route in self.routes:
            if route.matches(levels):
                settings = route.settings
                return Origin(
                    database=settings.database,
                    precision=settings.precision,
                    tags=route.tags(levels),
                    source="mqtt",
                    label=topic,
                    route=settings.template,
                    min_time_ns=settings.min_time_ns,
                    max_future_ns=settings.max_future_ns,
                )
        return None


def route_table(settings: Iterable[RouteSettings]) -> RouteTable:
    """Return the table of routes as configured."""
    return RouteTable(Route(each) for each in settings)
