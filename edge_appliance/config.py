"""The configuration: frozen sections with parsed values, and `load`, which reads and checks all of it at once.

A section declares each key once: the field with its unit, its type, the TOML name, the default as written, the limits.
A module is handed its own section, never the tree, and none but this one reads TOML, the environment or secret files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from edge_appliance import config_values as values
from edge_appliance import host
from edge_appliance.config_files import Document, KeyPath, read_documents
from edge_appliance.config_maintain import MaintainSection, read_databases
from edge_appliance.config_reader import Reader, section_keys
from edge_appliance.config_store import SpoolSection, StoreSection, derive_store
from edge_appliance.config_values import Key, Secret, size_text
from edge_appliance.core.memory_plan import INBOX_SHARE, PLANNED_SHARE, QUERY_SHARE, plan_memory
from edge_appliance.core.route import RouteSettings, parse_template
from edge_appliance.errors import ConfigError

DEFAULT_PATH: Final = Path("/etc/edge-appliance/edge-appliance.toml")

MIN_SEGMENTS_IN_WAL: Final = 4
"""A log with room for fewer stops intake while a single segment is being persisted."""

_label = values.name(
    r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "1 to 64 letters, digits, '-', '_' or '.', beginning with a letter or digit"
)
_optional_path = values.optional(values.absolute_path)


def _topic(value: object) -> str:
    topic = values.text(value)
    parse_template(topic)
    return topic


def _qos(value: object) -> int:
    if value == 2:
        raise ValueError(
            "QoS 2 is not supported: a line is safe with QoS 1, since its acknowledgement waits for the disk and a "
            "repeated message is recognised, while QoS 2 costs two more packets each way; use 1"
        )
    values.integer(0, 1)(value)
    return int(str(value))


class NodeSection(msgspec.Struct, frozen=True):
    """[node]: who we are and where our state lies."""

    # Part of client id and object names. Changing it makes the broker forget the session of the old name.
    id: Annotated[str, Key("id", "", values.optional(_label))]
    data_dir: Annotated[Path, Key("data_dir", "/var/lib/edge-appliance", values.absolute_path)]


class TlsSection(msgspec.Struct, frozen=True):
    """[mqtt.tls]: present means TLS, empty means the system's certificate authorities."""

    ca_file: Annotated[Path | None, Key("ca_file", "", _optional_path)]
    cert_file: Annotated[Path | None, Key("cert_file", "", _optional_path)]
    key_file: Annotated[Path | None, Key("key_file", "", _optional_path)]
    server_name: Annotated[str, Key("server_name", "", values.text)]
    min_version: Annotated[Literal["1.2", "1.3"], Key("min_version", "1.2", values.one_of("1.2", "1.3"))]


class MqttSection(msgspec.Struct, frozen=True):
    """[mqtt]: the broker, and which topics are read."""

    host: Annotated[str, Key("host", "127.0.0.1", values.host)]
    port: Annotated[int, Key("port", 1883, values.integer(1, 65_535))]
    protocol: Annotated[Literal["auto", "5", "3.1.1"], Key("protocol", "auto", values.one_of("auto", "5", "3.1.1"))]
    username: Annotated[str, Key("username", "", values.text)]
    password_file: Annotated[Path | None, Key("password_file", "", _optional_path)]
    password_credential: Annotated[str | None, Key("password_credential", "", values.optional(_label))]
    client_id: Annotated[str, Key("client_id", "", values.name(r"\S{0,255}", "a text without spaces"))]
    # Too short: dropped by a network that stalls. Too long: a dead link is noticed late. MQTT sends it in 2 bytes.
    keepalive_s: Annotated[int, Key("keepalive", "30s", values.whole_seconds("1s", "65535s"))]
    # Messages the broker may have on the way to us unacknowledged. Too few: throughput is this many a round trip and
    # group delay. Too many: the inbox fills up and reading pauses. MQTT sends it in 2 bytes.
    receive_maximum: Annotated[int, Key("receive_maximum", 4000, values.integer(1, 65_535))]
    password: Secret | None
    tls: TlsSection | None
    routes: tuple[RouteSettings, ...]


class MemorySection(msgspec.Struct, frozen=True):
    """[memory]: what the buffer may hold. Shares are of usable RAM: physical, or the control group's limit."""

    # Too small: many small parts. Too large: nothing left for persisting, queries and the page cache.
    buffer_limit_bytes: Annotated[int, Key("buffer_limit", "25%", values.share_or_size("4MiB"))]
    # Left to the host: below it the buffer shrinks. Too small: the host swaps or kills. Too large: many small parts.
    host_reserve_bytes: Annotated[int, Key("host_reserve", "10%", values.share_or_size("0B"))]
    # How long before the buffer is full rows are persisted. Too short: intake stops. Too long: many small parts.
    horizon_s: Annotated[float, Key("horizon", "300s", values.duration_s("1s", "1d"))]
    inbox_limit_bytes: Annotated[int, Key("inbox_limit", "16MiB", values.size("64KiB", "1GiB"))]


class SegmentSection(msgspec.Struct, frozen=True):
    """[segment]: when the open segment is cut and goes to Parquet."""

    # Too short: many small files. Too long: rows reach the store late, and replay takes longer.
    max_age_s: Annotated[float, Key("max_age", "1h", values.duration_s("1s", "7d"))]
    # Memory of one segment; unless stated, never more than half of the buffer limit.
    max_bytes: Annotated[int, Key("max_bytes", "64MiB", values.size("64KiB"))]


class WalSection(msgspec.Struct, frozen=True):
    """[wal]: how acknowledged lines are made durable."""

    # Off: rows live in memory until they are persisted, and a crash loses them. Shown as degraded.
    enabled: Annotated[bool, Key("enabled", True, values.boolean)]
    # Anything but "group" acknowledges before the disk has the line. Shown as degraded.
    sync: Annotated[
        Literal["group", "interval", "never"], Key("sync", "group", values.one_of("group", "interval", "never"))
    ]
    # Too short: one fsync a message wears flash. Too long: devices wait for their acknowledgement.
    group_delay_s: Annotated[float, Key("group_delay", "20ms", values.duration_s("5ms", "1s"))]
    # All WAL files together; at the cap nothing is acknowledged until a segment is persisted.
    max_bytes: Annotated[int, Key("max_bytes", "1GiB", values.size("256KiB"))]
    # Free disk space below which intake stops, so that persisting still can write.
    min_free_bytes: Annotated[int, Key("min_free", "256MiB", values.size())]


class PersistSection(msgspec.Struct, frozen=True):
    """[persist]: the workers that write Parquet."""

    # Written 0: one for each usable core; never more than that.
    workers: Annotated[int, Key("workers", 0, values.integer(0, 256))]


class QuerySection(msgspec.Struct, frozen=True):
    """[query]: limits of one SQL query."""

    memory_limit_bytes: Annotated[int, Key("memory_limit", "128MiB", values.size("8MiB"))]
    timeout_s: Annotated[float, Key("timeout", "30s", values.duration_s("100ms", "1d"))]
    max_rows: Annotated[int, Key("max_rows", 1_000_000, values.integer(1, 1_000_000_000))]


class HttpSection(msgspec.Struct, frozen=True):
    """[http]: the listening address and who may use it."""

    listen: Annotated[tuple[str, int], Key("listen", "127.0.0.1:8181", values.host_and_port)]
    token_file: Annotated[Path | None, Key("token_file", "", _optional_path)]
    # Compressed bodies count as inflated. A body waits in the inbox as a whole, and is one log record.
    max_body_bytes: Annotated[int, Key("max_body", "16MiB", values.size("1KiB", "32MiB"))]
    token: Secret | None

    @property
    def host(self) -> str:
        """The address to listen on."""
        return self.listen[0]

    @property
    def port(self) -> int:
        """The port to listen on."""
        return self.listen[1]


class LogSection(msgspec.Struct, frozen=True):
    """[log]: what reaches the journal."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Key("level", "info", values.one_of("debug", "info", "warning", "error")),
    ]


ROUTE_KEYS: Final = {
    "template": Key("topic", "devices/{device}/lp", _topic),
    "database": Key("database", "edge", _label),
    "precision": Key("precision", "auto", values.one_of("auto", "ns", "us", "ms", "s")),
    "qos": Key("qos", 1, _qos),
    # Earliest and latest time a line may state: a wrong clock on a device must not open a file for 1970 or 2106.
    "min_time_ns": Key("min_time", "2015-01-01T00:00:00Z", values.optional(values.parse_time_ns)),
    "max_future_ns": Key("max_future", "1d", values.optional(values.duration_ns("0s", "36500d"))),
}
"""[[mqtt.route]]: field of RouteSettings → key. Without any route in the files, one with these defaults is used."""


class Config(msgspec.Struct, frozen=True):
    """All sections, and what a person should know about how they came about."""

    node: NodeSection
    mqtt: MqttSection
    memory: MemorySection
    segment: SegmentSection
    wal: WalSection
    persist: PersistSection
    store: StoreSection
    spool: SpoolSection
    maintain: MaintainSection
    query: QuerySection
    http: HttpSection
    log: LogSection
    files: tuple[Path, ...]
    """The files that were read, in order."""
    notices: tuple[str, ...]
    """Sentences worth one line in the journal at start; no faults."""

    @property
    def database_names(self) -> frozenset[str]:
        """Databases that exist before their first row."""
        return frozenset([r.database for r in self.mqtt.routes] + [d.name for d in self.maintain.databases])


_SECTIONS: Final[dict[str, type]] = {
    "node": NodeSection,
    "mqtt": MqttSection,
    "memory": MemorySection,
    "segment": SegmentSection,
    "wal": WalSection,
    "persist": PersistSection,
    "store": StoreSection,
    "spool": SpoolSection,
    "maintain": MaintainSection,
    "query": QuerySection,
    "http": HttpSection,
    "log": LogSection,
}

Purpose = Literal["run", "check", "ask"]
"""What the configuration is loaded for: `run` needs every secret; `check` may be outside of the unit, where systemd's
credentials do not exist; `ask` (a command that talks to the daemon) reads the HTTP token only."""


def load(path: Path | None = None, *, purpose: Purpose = "run", environ: Mapping[str, str] = os.environ) -> Config:
    """Load the file and `conf.d/*.toml` beside it; raises ConfigError with all faults.

    Without `path` the default one is used, and it may be missing; a path that was named must exist.
    """
    document = read_documents(path or DEFAULT_PATH, is_required=path is not None)
    return _Loader(document, purpose, environ).load()


class _Loader:
    """One load: sections, then what follows from several keys, then secrets."""

    def __init__(self, document: Document, purpose: Purpose, environ: Mapping[str, str]) -> None:
        self._document = document
        self._purpose = purpose
        self._environ = environ
        self._reader = Reader(document)
        self._notices: list[str] = []

    def load(self) -> Config:
        reader = self._reader
        reader.top_level([*_SECTIONS, "database"])
        fields = {section: self._section(section, type_) for section, type_ in _SECTIONS.items()}
        self._derive(fields)
        self._relate(fields)
        fields["mqtt"]["tls"] = self._tls()
        fields["mqtt"]["routes"] = self._routes()
        fields["mqtt"]["password"] = self._password(fields["mqtt"])
        fields["http"]["token"] = reader.secret_file(("http", "token_file"), fields["http"]["token_file"])
        is_directory = fields["store"]["url"].scheme == "file"
        fields["maintain"]["databases"] = read_databases(reader, is_directory=is_directory)
        if reader.faults:
            raise ConfigError(sorted(reader.faults, key=lambda fault: (fault.file, fault.line)))
        if not self._document.files:
            self._notices.append(f"{DEFAULT_PATH} does not exist: the defaults are used")
        sections = {section: type_(**fields[section]) for section, type_ in _SECTIONS.items()}
        return Config(**sections, files=tuple(self._document.files), notices=tuple(self._notices))

    def _section(self, name_: str, type_: type) -> dict[str, Any]:
        others = ("tls", "route") if name_ == "mqtt" else ()
        return self._reader.fields((name_,), section_keys(type_), self._reader.table((name_,)), others)

    def _tls(self) -> TlsSection | None:
        path = ("mqtt", "tls")
        table = self._reader.table(path)
        if table is None:
            return None
        fields: dict[str, Any] = self._reader.fields(path, section_keys(TlsSection), table)
        if fields["key_file"] is not None and fields["cert_file"] is None:
            self._reader.fault((*path, "key_file"), "a key without its certificate: state cert_file, too")
        for key in ("ca_file", "cert_file", "key_file"):
            if fields[key] is not None and self._purpose != "ask":
                self._reader.file((*path, key), fields[key])
        return TlsSection(**fields)

    def _routes(self) -> tuple[RouteSettings, ...]:
        path: KeyPath = ("mqtt", "route")
        routes: list[RouteSettings] = []
        seen: set[str] = set()
        for index, table in enumerate(self._reader.tables(path)):
            fields: dict[str, Any] = self._reader.fields((*path, index), ROUTE_KEYS, table)
            if "topic" not in table:
                self._reader.fault((*path, index), "topic is missing: which messages does this route take?")
            elif fields["template"] in seen and self._reader.are_sound((*path, index, "topic")):
                self._reader.fault((*path, index, "topic"), "an earlier route has the same topic; the first one wins")
            seen.add(fields["template"])
            routes.append(RouteSettings(**fields))
        if not routes:
            routes.append(RouteSettings(**self._reader.fields((*path, 0), ROUTE_KEYS, None)))  # type: ignore[arg-type]
        return tuple(routes)

    def _derive(self, fields: dict[str, dict[str, Any]]) -> None:
        """Fill in what was left to us: values that follow from the host or from other keys."""
        node, memory, segment = fields["node"], fields["memory"], fields["segment"]
        node["id"] = node["id"] or host.default_node_id()
        fields["mqtt"]["client_id"] = fields["mqtt"]["client_id"] or f"edge-appliance-{node['id']}"
        is_checked = self._purpose != "ask"
        self._notices += derive_store(
            self._reader, fields["store"], node["data_dir"], self._environ, is_checked=is_checked
        )
        fields["persist"]["workers"] = min(fields["persist"]["workers"] or sys.maxsize, host.usable_cores())
        usable_bytes = self._usable_bytes = host.usable_memory_bytes()
        for key in ("buffer_limit_bytes", "host_reserve_bytes"):
            if isinstance(memory[key], float):
                memory[key] = int(memory[key] * usable_bytes)
        if not self._reader.is_stated(("memory", "inbox_limit")):
            memory["inbox_limit_bytes"] = min(memory["inbox_limit_bytes"], int(INBOX_SHARE * usable_bytes))
        if not self._reader.is_stated(("http", "max_body")):
            http = fields["http"]
            http["max_body_bytes"] = min(http["max_body_bytes"], memory["inbox_limit_bytes"])
        if not self._reader.is_stated(("query", "memory_limit")):
            query = fields["query"]
            query["memory_limit_bytes"] = min(query["memory_limit_bytes"], int(QUERY_SHARE * usable_bytes))
        if not self._reader.is_stated(("segment", "max_bytes")):
            segment["max_bytes"] = min(segment["max_bytes"], memory["buffer_limit_bytes"] // 2)

    def _relate(self, fields: dict[str, dict[str, Any]]) -> None:
        """Check what several keys must keep among each other."""
        relate = self._reader.relate
        buffer_bytes, segment_bytes = fields["memory"]["buffer_limit_bytes"], fields["segment"]["max_bytes"]
        wal_bytes, inbox_bytes = fields["wal"]["max_bytes"], fields["memory"]["inbox_limit_bytes"]
        plan = plan_memory(self._usable_bytes, buffer_bytes, inbox_bytes, fields["query"]["memory_limit_bytes"], 1)
        body_bytes, (address, _) = fields["http"]["max_body_bytes"], fields["http"]["listen"]
        relate(
            [("memory", "buffer_limit"), ("query", "memory_limit"), ("memory", "inbox_limit")],
            lambda: not plan.fits,
            lambda: f"above {PLANNED_SHARE:.0%} of usable RAM ({size_text(plan.most_bytes)}): {plan}",
        )
        relate(
            [("segment", "max_bytes"), ("memory", "buffer_limit")],
            lambda: segment_bytes > buffer_bytes,
            lambda: f"{size_text(segment_bytes)} is above memory.buffer_limit ({size_text(buffer_bytes)})",
        )
        relate(
            [("wal", "max_bytes"), ("segment", "max_bytes")],
            lambda: wal_bytes < MIN_SEGMENTS_IN_WAL * segment_bytes,
            lambda: (
                f"wal.max_bytes ({size_text(wal_bytes)}) must be at least {MIN_SEGMENTS_IN_WAL} times "
                f"segment.max_bytes ({size_text(segment_bytes)})"
            ),
        )
        relate(
            [("http", "max_body"), ("memory", "inbox_limit")],
            lambda: body_bytes > inbox_bytes,
            lambda: f"http.max_body ({size_text(body_bytes)}) is above memory.inbox_limit ({size_text(inbox_bytes)})",
        )
        relate(
            [("http", "listen"), ("http", "token_file")],
            lambda: not values.is_loopback(address) and fields["http"]["token_file"] is None,
            lambda: f"{address} can be reached from outside: http.token_file is required then",
        )
        relate(
            [("store", "url"), ("node", "data_dir")],
            lambda: fields["store"]["url"].directory == fields["node"]["data_dir"],
            lambda: "the store needs a directory of its own, not node.data_dir itself",
        )

    def _password(self, mqtt: dict[str, Any]) -> Secret | None:
        reader, credential = self._reader, mqtt["password_credential"]
        if mqtt["password_file"] is not None and credential is not None:
            reader.fault(("mqtt", "password_credential"), "password_file is stated too: keep one of the two")
            return None
        if (mqtt["password_file"] or credential) and not mqtt["username"] and reader.are_sound(("mqtt", "username")):
            reader.fault(("mqtt", "username"), "a password is stated without a user name, which MQTT 3.1.1 forbids")
        if self._purpose == "ask":
            return None
        if credential is not None:
            return self._credential(("mqtt", "password_credential"), credential)
        return reader.secret_file(("mqtt", "password_file"), mqtt["password_file"])

    def _credential(self, path: KeyPath, credential: str) -> Secret | None:
        directory = self._environ.get("CREDENTIALS_DIRECTORY")
        if directory is not None:
            return self._reader.credential(path, credential, Path(directory))
        message = f"credential {credential!r} is handed over by systemd, and CREDENTIALS_DIRECTORY is not set"
        if self._purpose == "check":
            self._notices.append(f"{'.'.join(map(str, path))}: not checked: {message}")
        else:
            self._reader.fault(path, f"{message}; outside of the unit use password_file")
        return None


def describe(config: Config) -> dict[str, object]:
    """Return the values in effect as plain data, by field name, secrets hidden."""
    plain = msgspec.to_builtins(config, enc_hook=str)
    assert isinstance(plain, dict)  # noqa: S101 - a struct becomes a dict
    return plain
