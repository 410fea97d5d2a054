"""config: values, faults with their places, merging, secrets, and the sample file."""

import json
import os
import re
from pathlib import Path

import msgspec
import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance import config, host
from edge_appliance.config_files import locate
from edge_appliance.config_maintain import DATABASE_KEYS
from edge_appliance.config_values import (
    Secret,
    parse_duration_ns,
    parse_size,
    parse_time_ns,
    size_text,
    time_text,
)
from edge_appliance.errors import ConfigError

ROOT = Path(__file__).parents[1]
GIB = 1 << 30


@pytest.fixture(autouse=True)
def fixed_host(monkeypatch):
    """A host of 4 GiB and 4 cores, whatever the tests run on."""
    monkeypatch.setattr(host, "usable_memory_bytes", lambda: 4 * GIB)
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    monkeypatch.setattr(host, "default_node_id", lambda: "0123456789ab")


@pytest.fixture
def load(tmp_path):
    """Write the text to a file and load it."""

    def _load(text, purpose="run", environ=None, **fragments):
        (tmp_path / "edge.toml").write_text(text)
        for name, content in fragments.items():
            (tmp_path / "conf.d").mkdir(exist_ok=True)
            (tmp_path / "conf.d" / f"{name}.toml").write_text(content)
        return config.load(tmp_path / "edge.toml", purpose=purpose, environ=environ or {})

    return _load


@pytest.fixture
def faults(load, tmp_path):
    """Load the text, expect faults, return them as text without the directory."""

    def _faults(text, **options):
        with pytest.raises(ConfigError) as caught:
            load(text, **options)
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return _faults


# Values and defaults


def test_defaults_are_those_of_the_contract(load):
    """An empty file gives every documented default, in base units."""
    settings = load("")
    assert settings.node == config.NodeSection("0123456789ab", Path("/var/lib/edge-appliance"))
    assert (settings.mqtt.host, settings.mqtt.port, settings.mqtt.protocol) == ("127.0.0.1", 1883, "auto")
    assert settings.mqtt.client_id == "edge-appliance-0123456789ab"
    assert (settings.mqtt.keepalive_s, settings.mqtt.receive_maximum) == (30, 4000)
    assert (settings.mqtt.password, settings.mqtt.tls) == (None, None)
    assert settings.memory == config.MemorySection(GIB, int(0.1 * 4 * GIB), 300.0, 16 << 20)
    assert settings.segment == config.SegmentSection(3600.0, 64 << 20)
    assert settings.wal == config.WalSection(True, "group", 0.02, GIB, 256 << 20)
    assert settings.persist.workers == 4
    assert settings.store.directory == Path("/var/lib/edge-appliance/store")
    assert settings.query == config.QuerySection(128 << 20, 30.0, 1_000_000)
    assert (settings.http.host, settings.http.port, settings.http.max_body_bytes) == ("127.0.0.1", 8181, 16 << 20)
    assert settings.log.level == "info"


def test_default_route_is_used_without_any(load):
    """Without a route in the files there is the documented one."""
    (route,) = load("").mqtt.routes
    assert (route.template, route.database, route.precision, route.qos) == ("devices/{device}/lp", "edge", "auto", 1)
    assert route.min_time_ns == 1_420_070_400_000_000_000
    assert route.max_future_ns == 86_400_000_000_000


def test_default_route_is_gone_when_one_is_stated(load):
    """A stated route replaces the default one, and its own keys have the same defaults."""
    (route,) = load('[[mqtt.route]]\ntopic = "a/{b}"\nmin_time = ""\nqos = 0').mqtt.routes
    assert (route.template, route.database, route.qos, route.min_time_ns) == ("a/{b}", "edge", 0, None)


def test_store_follows_the_data_directory(load):
    """Without a stated URL the store lies in the data directory, wherever that is."""
    assert load('[node]\ndata_dir = "/srv/edge"').store.directory == Path("/srv/edge/store")


def test_segment_size_unless_stated_fits_the_buffer(load):
    """A small buffer shrinks the default segment, so that a small machine needs no configuration."""
    assert load('[memory]\nbuffer_limit = "32MiB"').segment.max_bytes == 16 << 20


def test_small_machine_needs_no_configuration(load, monkeypatch):
    """Budgets that nobody stated shrink with the machine, and fit each other; stated ones that do not are a fault."""
    monkeypatch.setattr(config.host, "usable_memory_bytes", lambda: 256 << 20)
    small = load("")
    assert small.memory.inbox_limit_bytes == small.http.max_body_bytes < 16 << 20
    assert small.query.memory_limit_bytes < 64 << 20
    with pytest.raises(ConfigError, match="60% of usable RAM"):
        load('[query]\nmemory_limit = "128MiB"')


def test_workers_never_above_the_usable_cores(load):
    """More workers than cores only cost memory."""
    assert load("[persist]\nworkers = 64").persist.workers == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0B", 0),
        ("512 B", 512),
        ("16MiB", 16 << 20),
        ("1.5 GiB", 3 << 29),
        ("500MB", 500_000_000),
        ("1kb", 1000),
        (0, 0),
    ],
)
def test_sizes(text, expected):
    """Sizes take decimal and binary units, in any case, with or without a space."""
    assert parse_size(text) == expected


@pytest.mark.parametrize("value", ["16", 16, "MiB", "1 XB", "-1MiB", "", True, None, [], "1MiB ish", "٣MiB"])
def test_sizes_refused(value):
    """A size without a unit could mean anything, so it is refused."""
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(value)


@pytest.mark.parametrize(
    ("text", "expected_s"), [("20ms", 0.02), ("30s", 30), ("5 m", 300), ("1h", 3600), ("1d", 86_400), ("1.5s", 1.5)]
)
def test_durations(text, expected_s):
    """Durations take ms, s, m, h and d."""
    assert parse_duration_ns(text) == round(expected_s * 1_000_000_000)


@pytest.mark.parametrize("value", ["30", 30, 1.5, "30 ns", "1h30m", "", False])
def test_durations_refused(value):
    """A bare number never passes as a duration."""
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration_ns(value)


@pytest.mark.parametrize(
    ("value", "expected_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2015-01-01T01:00:00.5+01:00", 1_420_070_400_500_000_000),
        (tomli.loads("t = 2015-01-01T00:00:00Z")["t"], 1_420_070_400_000_000_000),
    ],
)
def test_times(value, expected_ns):
    """Times are exact to the nanosecond, before 1970 too, and may be TOML date-times."""
    assert parse_time_ns(value) == expected_ns


@pytest.mark.parametrize(
    "value", ["2015-01-01", "2015-01-01T00:00:00", "2015-13-01T00:00:00Z", 0, tomli.loads("t = 2015-01-01")["t"]]
)
def test_times_refused(value):
    """A time needs date, time and offset."""
    with pytest.raises(ValueError, match="expected a time"):
        parse_time_ns(value)


@given(st.integers(-(2**62), 2**62))
def test_times_survive_being_written(time_ns):
    """Writing a time and reading it gives the same time."""
    assert parse_time_ns(time_text(time_ns)) == time_ns


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (3 << 29, "1.5 GiB"), (1 << 50, "1024 TiB")]
)
def test_sizes_for_people(size_bytes, text):
    """Sizes are shown in the unit that keeps them short."""
    assert size_text(size_bytes) == text


# Faults


def test_all_faults_are_named_at_once(faults):
    """One run names every fault with file, line, key and what was expected, in the order of the lines."""
    found = faults('[node]\nid = "a b"\n[mqtt]\nport = 0\n\n[wal]\ngroup_delay = "1ms"\n')
    assert [fault.split(": ")[:2] for fault in found] == [
        ["edge.toml:2", "node.id"],
        ["edge.toml:4", "mqtt.port"],
        ["edge.toml:7", "wal.group_delay"],
    ]


def test_unknown_key_gets_a_suggestion(faults):
    """A typo is answered with the nearest key, and the thought that the key may be of a newer release."""
    (fault,) = faults("[mqtt]\n\nrecieve_maximum = 10")
    assert fault.startswith("edge.toml:3: mqtt.recieve_maximum: unknown key; did you mean 'receive_maximum'?")
    assert "newer release" in fault


def test_unknown_section_gets_a_suggestion(faults):
    """So is a section."""
    assert faults("[sgement]\nmax_age = '1h'")[0].startswith(
        "edge.toml:1: sgement: unknown section; did you mean 'segment'"
    )


@pytest.mark.parametrize(
    ("text", "place", "part"),
    [
        ("[mqtt.tls]\nca_fil = ''", "edge.toml:2: mqtt.tls.ca_fil", "did you mean 'ca_file'"),
        ("[[mqtt.route]]\ntopic='a'\n[[mqtt.route]]\ntopic='b'\ndb='x'", "edge.toml:5: mqtt.route.db", "unknown key"),
        ("mqtt = 1", "edge.toml:1: mqtt", "expected a table"),
        ("[mqtt]\nroute = 1", "edge.toml:2: mqtt.route", "[[mqtt.route]]"),
        ("[mqtt.route]\ntopic = 'a'", "edge.toml:1: mqtt.route", "[[mqtt.route]]"),
        ("[[mqtt.route]]\nqos = 1", "edge.toml:1: mqtt.route", "topic is missing"),
        ("[[mqtt.route]]\ntopic = 'a/#/b'", "edge.toml:2: mqtt.route.topic", "#"),
        ("[[mqtt.route]]\ntopic = '{time}/lp'", "edge.toml:2: mqtt.route.topic", "reserved"),
        ("[[mqtt.route]]\ntopic='a'\n[[mqtt.route]]\ntopic='a'", "edge.toml:4: mqtt.route.topic", "the first one wins"),
        ("[[mqtt.route]]\ntopic = 'a'\nqos = 2", "edge.toml:3: mqtt.route.qos", "QoS 2 is not supported"),
        ("[mqtt]\nreceive_maximum = 65536", "edge.toml:2: mqtt.receive_maximum", "from 1 to 65535"),
        ("[mqtt]\nhost = 'mqtt://broker'", "edge.toml:2: mqtt.host", "without scheme and port"),
        ("[mqtt]\nhost = 'broker:1883'", "edge.toml:2: mqtt.host", "without scheme and port"),
        ("[mqtt]\nprotocol = '4'", "edge.toml:2: mqtt.protocol", "auto, 5 or 3.1.1"),
        ("[mqtt]\nkeepalive = '1500ms'", "edge.toml:2: mqtt.keepalive", "whole seconds"),
        ("[wal]\ngroup_delay = '2s'", "edge.toml:2: wal.group_delay", "5ms to 1s"),
        ("[wal]\nenabled = 1", "edge.toml:2: wal.enabled", "true or false"),
        ("[memory]\nbuffer_limit = '0%'", "edge.toml:2: memory.buffer_limit", "more than 0%"),
        ("[memory]\nbuffer_limit = 25", "edge.toml:2: memory.buffer_limit", "25%"),
        ("[memory]\nbuffer_limit = '61%'", "edge.toml:2: memory.buffer_limit", "60% of usable RAM"),
        ("[store]\nurl = 'ftp://bucket/x'", "edge.toml:2: store.url", "expected file:///directory"),
        ("[store]\nurl = 's3://a b/x'", "edge.toml:2: store.url", "expected a bucket"),
        ("[store]\nurl = 's3://bucket/a/../b'", "edge.toml:2: store.url", "dotted segment"),
        ("[store]\nurl = 's3://key:secret@bucket'", "edge.toml:2: store.url", "expected file:///directory"),
        ("[store]\nurl = 'az://container'", "edge.toml:1: store.account", "the storage account is missing"),
        ("[store]\nendpoint = 'http://store:9000'", "edge.toml:2: store.endpoint", "does not use it"),
        ("[store]\nurl='s3://b-1'\nendpoint = 'store:9000'", "edge.toml:3: store.endpoint", "expected http://"),
        ("[store]\nurl='s3://b-1'\nproxy = 'http://u:p@x'", "edge.toml:3: store.proxy", "does not belong here"),
        ("[store]\nmax_bandwidth = '1MB/h'", "edge.toml:2: store.max_bandwidth", "expected a size a second"),
        ("[store]\nurl='s3://b-1'\ncredentials_file = '/gone'", "edge.toml:3: store.credentials_file", "No such file"),
        ("[spool]\npolicy = 'drop'", "edge.toml:2: spool.policy", "expected stop-ack or drop-oldest"),
        ("[store]\nurl = '/srv/store'", "edge.toml:2: store.url", "expected file://"),
        ("[store]\nurl = 'file://server/x'", "edge.toml:2: store.url", "expected file://"),
        ("[store]\nurl = 'file:///var/lib/edge-appliance'", "edge.toml:2: store.url", "directory of its own"),
        ("[http]\nlisten = '8181'", "edge.toml:2: http.listen", "address:port"),
        ("[http]\nlisten = '127.0.0.1:70000'", "edge.toml:2: http.listen", "address:port"),
        ("[http]\nlisten = '0.0.0.0:8181'", "edge.toml:2: http.listen", "http.token_file is required"),
        (
            "[http]\nmax_body = '32MiB'",
            "edge.toml:2: http.max_body",
            "http.max_body (32 MiB) is above memory.inbox_limit (16 MiB)",
        ),
        ("[node]\ndata_dir = 'data'", "edge.toml:2: node.data_dir", "absolute path"),
        ("[segment]\nmax_bytes = '2GiB'\n[wal]\nmax_bytes = '8GiB'", "edge.toml:2: segment.max_bytes", "buffer_limit"),
        ("[segment]\nmax_bytes = '300MiB'", "edge.toml:2: segment.max_bytes", "at least 4 times"),
        ("[log]\nlevel = 'trace'", "edge.toml:2: log.level", "debug, info, warning or error"),
    ],
)
def test_fault(faults, text, place, part):
    """One mistake gives one fault, at its line, with the way out."""
    (fault,) = faults(text)
    assert fault.startswith(f"{place}: ")
    assert part in fault


@pytest.mark.parametrize("name", ["broker", "broker.example.org", "192.168.1.10", "::1", "fe80::1%eth0", "2001:db8::7"])
def test_broker_by_name_and_address(load, name):
    """Names and addresses of both kinds are taken as they are written."""
    assert load(f"[mqtt]\nhost = '{name}'").mqtt.host == name


def test_relation_is_not_judged_when_one_side_is_faulty(faults):
    """A faulty value gives one fault, not a second one about what its default would break."""
    assert len(faults("[memory]\nbuffer_limit = 'x'\n[segment]\nmax_bytes = '2GiB'\n[wal]\nmax_bytes = '8GiB'")) == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[mqtt]\nport = \n", "edge.toml:2: column"),
        ("a = 1\n\na = 2", "edge.toml:3: column"),
        ("[a\n", "edge.toml:1: column"),
    ],
)
def test_syntax_error_keeps_line_and_column(faults, text, place):
    """What is no TOML is reported where the parser met it, duplicate keys too."""
    (fault,) = faults(text)
    assert fault.startswith(place)


def test_not_utf8(tmp_path):
    """A file in another encoding is a fault with the line of the first bad byte."""
    (tmp_path / "edge.toml").write_bytes(b"[node]\nid = '\xe4'\n")
    with pytest.raises(ConfigError, match=r"edge\.toml:2: not UTF-8"):
        config.load(tmp_path / "edge.toml")


def test_named_file_is_missing(tmp_path):
    """A file that was named must exist."""
    with pytest.raises(ConfigError, match="no such file"):
        config.load(tmp_path / "edge.toml")


def test_default_file_is_missing(tmp_path, monkeypatch):
    """Without any file the defaults are used, and a notice says so."""
    monkeypatch.setattr(config, "DEFAULT_PATH", tmp_path / "edge.toml")
    settings = config.load()
    assert settings.files == ()
    assert "the defaults are used" in settings.notices[0]


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_unreadable_fragment_directory(load, tmp_path):
    """A conf.d that cannot be read stops the start: half a configuration is worse than none."""
    (tmp_path / "conf.d").mkdir(mode=0o000)
    with pytest.raises(ConfigError, match=r"conf\.d: .*mode 0000, uid"):
        load("")


def test_unreadable_file_names_mode_and_owner(tmp_path, monkeypatch):
    """A file that may not be read is reported with its mode and owner, so that the fix is evident."""
    (tmp_path / "edge.toml").touch(0o640)

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=rf"Permission denied; mode 0640, uid {os.getuid()}"):
        config.load(tmp_path / "edge.toml")


# Fragments


def test_fragments_are_merged_in_name_order(load, monkeypatch):
    """Tables merge, and the value of the last file by name wins, in whatever order the directory lists them."""
    list_directory = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(sorted(list_directory(self), reverse=True)))
    settings = load(
        "[mqtt]\nhost = 'a'\nport = 1", b="[mqtt]\nhost = 'c'\n[log]\nlevel = 'debug'", a="[mqtt]\nhost = 'b'"
    )
    assert (settings.mqtt.host, settings.mqtt.port, settings.log.level) == ("c", 1, "debug")
    assert [path.name for path in settings.files] == ["edge.toml", "a.toml", "b.toml"]


def test_fragments_append_routes(load):
    """Routes of a later file come after those before it, since the first match wins."""
    settings = load("[[mqtt.route]]\ntopic = 'a'", a="[[mqtt.route]]\ntopic = 'b'\n[[mqtt.route]]\ntopic = 'c'")
    assert [route.template for route in settings.mqtt.routes] == ["a", "b", "c"]


def test_fault_in_a_fragment_names_that_file(faults):
    """Places are right for values and appended routes of a later file, and for the files before it."""
    found = faults(
        "[[mqtt.route]]\ntopic = 'a'\nqos = 3",
        a="[mqtt]\nport = 0\n[[mqtt.route]]\ntopic = 'b'\n[[mqtt.route]]\ntopic = 'c'\nqos = 4",
        b="[[mqtt.route]]\nqos = 5",
    )
    assert [fault.split(": ")[0] for fault in found] == [
        "conf.d/a.toml:2",
        "conf.d/a.toml:7",
        "conf.d/b.toml:1",
        "conf.d/b.toml:2",
        "edge.toml:3",
    ]


def test_other_files_in_the_fragment_directory_are_ignored(load, tmp_path):
    """Editors' copies and dpkg's leftovers are no configuration."""
    (tmp_path / "conf.d").mkdir()
    for name in ("a.toml.dpkg-dist", "a.toml~", ".a.toml", "README"):
        (tmp_path / "conf.d" / name).write_text("nonsense")
    assert len(load("").files) == 1


# Lines of keys


def test_locate_all_kinds_of_statements():
    """Every key and header is found at its line, past strings, arrays and comments that look like either."""
    text = "\n".join(
        [
            "top = 1 # [not.a.table]",
            "[a]",
            'x = """',
            "[fake]",
            "y = 1",
            '"""',
            "y = [",
            '  "]", # ]',
            '  { z = 1 }, ["fake"],',
            '  ["fake"]',
            "]",
            "'quoted key' . b = 2",
            '  [a."d.e"]  # comment',
            "k = '''a",
            "[[fake]]'''",
            "\t[[r]]",
            "n = '# no comment'",
            "[[r]]",
            "[r.sub]",
            "n = 2",
            r'"\u00e4" = "\"" ',
        ]
    )
    tomli.loads(text)
    assert locate(text) == {
        ("top",): 1,
        ("a",): 2,
        ("a", "x"): 3,
        ("a", "y"): 7,
        ("a", "quoted key", "b"): 12,
        ("a", "d.e"): 13,
        ("a", "d.e", "k"): 14,
        ("r", 0): 16,
        ("r", 0, "n"): 17,
        ("r", 1): 18,
        ("r", 1, "sub"): 19,
        ("r", 1, "sub", "n"): 20,
        ("r", 1, "sub", "ä"): 21,
    }


def test_locate_with_windows_line_ends():
    """Files from other systems have the same lines."""
    assert locate("[a]\r\nb = 1\r\n\r\nc = 2\r\n") == {("a",): 1, ("a", "b"): 2, ("a", "c"): 4}


@given(st.text(alphabet="[]{}='\"#\n\\ab.1 ,", max_size=60))
def test_locate_any_valid_toml(text):
    """Whatever tomli accepts, every located key is one that tomli found."""
    try:
        values = tomli.loads(text)
    except tomli.TOMLDecodeError:
        return
    for path, line in locate(text).items():
        assert 1 <= line <= text.count("\n") + 1
        found = values
        for part in path:
            found = found[part]


# Secrets


def test_password_file(load, tmp_path):
    """The line end that an editor leaves does not belong to the password; spaces do."""
    (tmp_path / "pw").write_text(" s3cret \r\n")
    settings = load(f"[mqtt]\nusername = 'u'\npassword_file = '{tmp_path}/pw'")
    assert settings.mqtt.password.reveal() == " s3cret "


@pytest.mark.parametrize("file_name", ["mqtt-password", "cred_mqtt-password"])
def test_credential(load, tmp_path, file_name):
    """A credential is found by its name, also with the prefix of LoadCredential's directory form."""
    (tmp_path / file_name).write_text("s3cret\n")
    settings = load(
        "[mqtt]\nusername = 'u'\npassword_credential = 'mqtt-password'",
        environ={"CREDENTIALS_DIRECTORY": str(tmp_path)},
    )
    assert settings.mqtt.password == Secret("s3cret")


def test_credential_absent(faults, tmp_path):
    """A credential that is named but not handed over is a fault with its name."""
    (fault,) = faults(
        "[mqtt]\nusername = 'u'\npassword_credential = 'pw'", environ={"CREDENTIALS_DIRECTORY": str(tmp_path)}
    )
    assert fault.startswith("edge.toml:3: mqtt.password_credential: no credential 'pw' in ")


def test_credential_outside_of_the_unit(load, faults):
    """Without systemd's directory `run` has a fault, `check` a notice, and a client does not care."""
    text = "[mqtt]\nusername = 'u'\npassword_credential = 'pw'"
    assert "CREDENTIALS_DIRECTORY is not set" in faults(text)[0]
    assert "not checked" in load(text, purpose="check").notices[0]
    assert load(text, purpose="ask").notices == ()


def test_password_twice(faults, tmp_path):
    """Two sources of one password are a fault: nobody could tell which one counts."""
    (tmp_path / "pw").write_text("x")
    (fault,) = faults(f"[mqtt]\nusername='u'\npassword_file = '{tmp_path}/pw'\npassword_credential = 'pw'")
    assert "keep one of the two" in fault


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "No such file"),
        (b"\n", "is empty"),
        (b"a\nb\n", "one line"),
        (b"\xff", "UTF-8"),
        (b"x" * 65_536, "65,535 at most"),
    ],
)
def test_secret_file_unusable(faults, tmp_path, content, part):
    """An unusable secret is a fault of the key that names it, and its content is never shown."""
    if content is not None:
        (tmp_path / "pw").write_bytes(content)
    (fault,) = faults(f"[mqtt]\nusername = 'u'\npassword_file = '{tmp_path}/pw'")
    assert fault.startswith("edge.toml:3: mqtt.password_file: ")
    assert part in fault


def test_password_without_username(faults, tmp_path):
    """MQTT 3.1.1 forbids a password without a user name."""
    (tmp_path / "pw").write_text("x")
    assert "mqtt.username" in faults(f"[mqtt]\npassword_file = '{tmp_path}/pw'")[0]


def test_listen_beyond_loopback_with_a_token(load, tmp_path):
    """With a token the daemon may be reached from outside."""
    (tmp_path / "token").write_text("t0ken\n")
    settings = load(f"[http]\nlisten = '[::]:8181'\ntoken_file = '{tmp_path}/token'", purpose="ask")
    assert (settings.http.host, settings.http.token) == ("::", Secret("t0ken"))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "[::1]", "localhost"])
def test_loopback_needs_no_token(load, address):
    """Every name of the loopback counts."""
    assert load(f"[http]\nlisten = '{address}:1'").http.token is None


def test_text_longer_than_any_protocol_takes(faults):
    """A name that no packet can carry is a fault of the configuration, not of the first connect."""
    (fault,) = faults(f'[mqtt]\nusername = "{"u" * 70_000}"\n')
    assert fault == "edge.toml:2: mqtt.username: expected at most 4,096 characters, got 70,000"


def test_two_bad_topics_are_two_faults(faults):
    """Routes with faulty topics are not taken for the same route on top of that."""
    found = faults('[[mqtt.route]]\ntopic = "a/#/b"\n[[mqtt.route]]\ntopic = "{a}/{a}"\n')
    assert [fault.split(": ")[0] for fault in found] == ["edge.toml:2", "edge.toml:4"]


def test_secret_hides_everywhere(load, tmp_path):
    """A secret shows in no text form of itself, of the configuration, or of its description."""
    (tmp_path / "pw").write_text("s3cret")
    settings = load(f"[mqtt]\nusername = 'u'\npassword_file = '{tmp_path}/pw'\n[http]\ntoken_file = '{tmp_path}/pw'")
    secret = settings.mqtt.password
    described = json.dumps(config.describe(settings), default=str)
    shown = f"{secret} {secret!r} {secret!s:>20} {settings} {json.dumps(secret, default=str)} {described}"
    assert "s3cret" not in shown
    with pytest.raises(TypeError):
        msgspec.json.encode(settings.mqtt.password)
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps(secret)


def test_tls_files_must_exist(faults):
    """Files that TLS needs are looked for at load, not at the first connect."""
    found = faults("[mqtt.tls]\nca_file = '/nowhere/ca.pem'\ncert_file = '/nowhere/c.pem'")
    assert [fault.split(": ")[0] for fault in found] == ["edge.toml:2", "edge.toml:3"]


def test_tls_key_needs_its_certificate(faults, tmp_path):
    """A key alone identifies nobody; a certificate alone may hold its key."""
    (tmp_path / "k").write_text("x")
    assert "state cert_file" in faults(f"[mqtt.tls]\nkey_file = '{tmp_path}/k'")[0]


def test_tls_empty_section_turns_it_on(load):
    """The section's presence is the switch; a client command does not look for its files."""
    assert load("[mqtt.tls]").mqtt.tls == config.TlsSection(None, None, None, "", "1.2")
    assert load("[mqtt.tls]\nca_file = '/nowhere'", purpose="ask").mqtt.tls.ca_file == Path("/nowhere")


# The sample


def test_sample_file_is_the_defaults(load):
    """The shipped file changes nothing."""
    text = (ROOT / "config" / "edge-appliance.toml").read_text()
    shipped, empty = load(text), load("")
    assert msgspec.structs.replace(shipped, files=()) == msgspec.structs.replace(empty, files=())


def test_sample_file_shows_every_key_with_its_default(load):
    """With the '#' in front of all keys taken off it still changes nothing, but for TLS, and no key is missing."""
    text = (ROOT / "config" / "edge-appliance.toml").read_text()
    full = re.sub(r"(?m)^#(?=[a-z\[])", "", text)
    settings = load(full)
    mqtt = msgspec.structs.replace(settings.mqtt, tls=None)
    maintain = msgspec.structs.replace(settings.maintain, databases=())
    assert config.describe(
        msgspec.structs.replace(settings, mqtt=mqtt, maintain=maintain, files=())
    ) == config.describe(msgspec.structs.replace(load(""), files=()))
    shown = {(*path[:-1], path[-1]) for path in locate(full)}
    types = {field.name: field.type for field in msgspec.structs.fields(config.Config)}
    sections = {name: (name,) for name, type_ in types.items() if hasattr(type_, "__struct_fields__")}
    del sections["mqtt"]
    expected = {(*at, key.name) for name, at in sections.items() for key in config.section_keys(types[name]).values()}
    expected |= {("mqtt", key.name) for key in config.section_keys(config.MqttSection).values()}
    expected |= {("mqtt", "tls", key.name) for key in config.section_keys(config.TlsSection).values()}
    expected |= {("mqtt", "route", 0, key.name) for key in config.ROUTE_KEYS.values()}
    expected |= {("database", 0, key.name) for key in DATABASE_KEYS.values()}
    assert expected <= shown
