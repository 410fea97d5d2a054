"""reload_plan: which changes take effect at once, and which wait for a restart."""

import msgspec
import pytest

from edge_appliance import config
from edge_appliance.reload_plan import Outcome, plan


@pytest.fixture
def load(tmp_path):
    """Write the text to a file and load it."""

    def _load(text):
        (tmp_path / "edge.toml").write_text(text)
        return config.load(tmp_path / "edge.toml", environ={})

    return _load


def test_same_files_change_nothing(load):
    """Reading the same text again finds nothing to do."""
    planned = plan(load("[mqtt]\nport = 1884"), load("[mqtt]\nport = 1884"))
    assert (planned.applied, planned.needs_restart) == ((), ())


def test_live_keys_are_taken_and_others_named(load):
    """A live key has its new value, the others keep the old one and are named."""
    old = load('[log]\nlevel = "info"\n[mqtt]\nport = 1883')
    planned = plan(old, load('[log]\nlevel = "debug"\n[mqtt]\nport = 1884\n[wal]\nmin_free = "1GiB"'))
    assert planned.applied == ("wal.min_free", "log.level")
    assert planned.needs_restart == ("mqtt.port",)
    assert (planned.config.log.level, planned.config.wal.min_free_bytes) == ("debug", 1 << 30)
    assert planned.config.mqtt.port == 1883


def test_routes_are_live(load):
    """Routes are taken over as a whole."""
    planned = plan(load(""), load('[[mqtt.route]]\ntopic = "a/{b}"'))
    assert planned.applied == ("mqtt.route",)
    assert [route.template for route in planned.config.mqtt.routes] == ["a/{b}"]


def test_limits_wait_with_the_buffer_they_were_checked_against(load):
    """A segment size that fits the new buffer only must not meet the old one."""
    old = load('[memory]\nbuffer_limit = "64MiB"\n[segment]\nmax_bytes = "32MiB"')
    planned = plan(old, load('[memory]\nbuffer_limit = "128MiB"\n[segment]\nmax_bytes = "100MiB"'))
    assert planned.applied == ()
    assert planned.needs_restart == ("memory.buffer_limit", "segment.max_bytes")
    assert planned.config.segment.max_bytes == 32 << 20


def test_changed_secrets_are_noticed(load, tmp_path):
    """A new password behind the same file name is a change, and its text is nowhere in the outcome."""
    (tmp_path / "password").write_text("one")
    text = f'[mqtt]\nusername = "edge"\npassword_file = "{tmp_path}/password"'
    old = load(text)
    (tmp_path / "password").write_text("zwei")
    planned = plan(old, load(text))
    assert planned.applied == ("mqtt.password",)
    assert planned.config.mqtt.password.reveal() == "zwei"
    assert "zwei" not in repr(planned)


def test_every_field_has_a_name(load):
    """Whatever differs can be named: no section has a field that the plan does not know."""
    old = load("")
    for top in msgspec.structs.fields(config.Config):
        section = getattr(old, top.name)
        if isinstance(section, msgspec.Struct):
            for field in msgspec.structs.fields(section):
                changed = msgspec.structs.replace(section, **{field.name: object()})
                planned = plan(old, msgspec.structs.replace(old, **{top.name: changed}))
                assert len(planned.applied + planned.needs_restart) == 1, field.name


def test_outcome_in_words():
    """What was done is one sentence for the journal and the terminal."""
    assert str(Outcome()) == "nothing has changed"
    assert str(Outcome("", ("log.level",), ("mqtt.port",))) == "applied: log.level; needs a restart: mqtt.port"
    assert str(Outcome("a.toml:1: bad")).startswith("the old configuration stays")
