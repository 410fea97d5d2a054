"""[maintain] and [[database]]: values, and the faults that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_appliance import config
from edge_appliance.config_maintain import DatabaseSettings
from edge_appliance.errors import ConfigError


def load(tmp_path: Path, text: str) -> config.Config:
    """Load `text` as a configuration."""
    path = tmp_path / "edge.toml"
    path.write_text(text)
    return config.load(path, environ={})


def test_rules_of_databases_are_read(tmp_path: Path) -> None:
    """Each table is one rule; what it does not state is kept for ever."""
    loaded = load(tmp_path, '[[database]]\nname = "a"\nretention = "30d"\n[[database]]\nname = "b"\nmax_bytes = "2GiB"')
    assert loaded.maintain.databases == (
        DatabaseSettings("a", 30 * 86_400 * 10**9, None),
        DatabaseSettings("b", None, 2 * 2**30),
    )
    assert load(tmp_path, "").maintain.databases == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[database]]\nretention = '1d'", "edge.toml:1: database: name is missing"),
        ("[[database]]\nname = 'a'\nretention = '1m'", "edge.toml:3: database.retention"),
        ("[[database]]\nname = 'a'\n[[database]]\nname = 'a'", "edge.toml:4: database.name: there are rules"),
        ("[[database]]\nname = 'a'\nretentoin = '1d'", "did you mean 'retention'"),
        ("[database]\nname = 'a'", "[[database]]"),
        ("[store]\nurl = 's3://bucket'\n[[database]]\nname = 'a'\nmax_bytes = '1GiB'", "store.keep_local"),
        ("[maintain]\nmerge_stored = 'sometimes'", "edge.toml:2: maintain.merge_stored"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, fault: str) -> None:
    """A mistake gives its line, its key and what to do."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert fault in str(caught.value)
