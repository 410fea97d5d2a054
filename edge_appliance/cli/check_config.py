"""`edge-appliance check-config`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import msgspec

from edge_appliance import config
from edge_appliance.cli.command import Exit, add_config_option
from edge_appliance.config_reader import section_keys
from edge_appliance.config_values import size_text, time_text
from edge_appliance.errors import ConfigError

EXAMPLES = "  edge-appliance check-config\n  edge-appliance check-config --config ./edge-appliance.toml --show"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("--show", action="store_true", help="also print every value in effect")
    parser.add_argument("--json", action="store_true", help="as a JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Load as `run` would; faults end in exit code 78 with one line each."""
    try:
        settings = config.load(arguments.config, purpose="check")
    except ConfigError as error:
        if not arguments.json:
            raise
        print(json.dumps({"faults": [str(fault) for fault in error.faults]}, indent=2, ensure_ascii=False))
        return Exit.CONFIGURATION
    if arguments.json:
        print(json.dumps(_as_object(settings, shows_values=arguments.show), indent=2, ensure_ascii=False))
        return Exit.OK
    for notice in settings.notices:
        print(notice)
    print(f"ok: {', '.join(map(str, settings.files)) or 'the defaults'}")
    if arguments.show:
        rows = list(values_in_effect(settings))
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            print(f"{name:<{width}}  {text}")
    return Exit.OK


def _as_object(settings: config.Config, *, shows_values: bool) -> dict[str, object]:
    checked: dict[str, object] = {
        "faults": [],
        "notices": [str(notice) for notice in settings.notices],
        "files": [str(path) for path in settings.files],
    }
    return {**checked, "values": dict(values_in_effect(settings))} if shows_values else checked


def values_in_effect(settings: config.Config) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value with its unit) of all sections and routes."""
    for field in msgspec.structs.fields(settings):
        section = getattr(settings, field.name)
        if not isinstance(section, msgspec.Struct):
            continue
        for attribute, key in section_keys(type(section)).items():
            yield f"{field.name}.{key.name}", _text(attribute, getattr(section, attribute))
    tls = settings.mqtt.tls
    for attribute, key in section_keys(config.TlsSection).items() if tls is not None else ():
        yield f"mqtt.tls.{key.name}", _text(attribute, getattr(tls, attribute))
    for number, route in enumerate(settings.mqtt.routes, start=1):
        for attribute, key in config.ROUTE_KEYS.items():
            yield f"mqtt.route {number}.{key.name}", _text(attribute, getattr(route, attribute))


def _text(field: str, value: object) -> str:
    """The value as a person would write it; the field's name ends in its unit."""
    match value:
        case None | "":
            return "-"
        case bool():
            return str(value).lower()
        case (host, port):
            return f"{host}:{port}"
        case int() | float() if field.endswith("_s"):
            return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"
        case int() if field.endswith("_bytes"):
            return size_text(value)
    text = str(value)
    if isinstance(value, int) and field.endswith("_ns"):
        text = time_text(value) if field == "min_time_ns" else f"{value / 1_000_000_000:g} s"
    return text
