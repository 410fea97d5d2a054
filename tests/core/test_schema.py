"""Definitions: provisional until committed, gone after a rollback, bounded."""

import pytest

from edge_appliance.core.delivery import ColumnDefinition, Kind, Reason, TableDefinition
from edge_appliance.core.schema import Schema, SchemaLimits, check_kind, load_schema


def test_provisional_definitions_are_not_visible():
    """Readers see a table only after the group that made it was committed."""
    schema = Schema()
    table = schema.add_table("edge", "pump")
    schema.add_column(table, "rpm", Kind.FLOAT)
    assert schema.columns("edge", "pump") is None
    assert schema.table_names("edge") == []
    schema.commit()
    assert schema.columns("edge", "pump") == (ColumnDefinition("rpm", Kind.FLOAT),)
    assert schema.databases() == ["edge"]


def test_rollback_leaves_no_trace():
    """A failed group leaves no database, table or column behind."""
    schema = load_schema([TableDefinition("edge", "pump", (ColumnDefinition("rpm", Kind.FLOAT),))])
    before = schema.definitions()
    schema.add_column(schema.table("edge", "pump"), "temp", Kind.INT)
    other = schema.add_table("other", "fan")
    schema.add_column(other, "x", Kind.BOOL)
    schema.rollback()
    assert schema.definitions() == before
    assert schema.table("other", "fan") is None
    assert schema.table("edge", "pump").kinds == {"rpm": Kind.FLOAT}


def test_rollback_to_a_savepoint_keeps_what_came_before():
    """One line of a group can be taken back without the others."""
    schema = Schema()
    table = schema.add_table("edge", "pump")
    schema.add_column(table, "a", Kind.FLOAT)
    savepoint = schema.savepoint
    schema.add_column(table, "b", Kind.FLOAT)
    schema.rollback(savepoint)
    schema.commit()
    assert [c.name for c in schema.columns("edge", "pump")] == ["a"]


def test_added_since_groups_columns_by_table():
    """What a group added is what its log record must carry."""
    schema = Schema()
    pump, fan = schema.add_table("edge", "pump"), schema.add_table("edge", "fan")
    schema.add_column(pump, "a", Kind.FLOAT)
    schema.add_column(fan, "b", Kind.INT)
    schema.add_column(pump, "c", Kind.TAG)
    assert schema.added_since(0) == [
        TableDefinition("edge", "pump", (ColumnDefinition("a", Kind.FLOAT), ColumnDefinition("c", Kind.TAG))),
        TableDefinition("edge", "fan", (ColumnDefinition("b", Kind.INT),)),
    ]


def test_define_names_columns_that_clash():
    """A stored definition never changes the kind of a known column."""
    schema = load_schema([TableDefinition("edge", "pump", (ColumnDefinition("rpm", Kind.FLOAT),))])
    definition = TableDefinition("edge", "pump", (ColumnDefinition("rpm", Kind.INT), ColumnDefinition("x", Kind.INT)))
    assert schema.define(definition) == ["rpm"]
    schema.commit()
    assert schema.columns("edge", "pump") == (ColumnDefinition("rpm", Kind.FLOAT), ColumnDefinition("x", Kind.INT))


def test_table_limit_is_per_database_and_inclusive():
    """The limit itself is accepted, one more is not."""
    schema = Schema(SchemaLimits(tables=2))
    assert schema.add_table("edge", "a")
    assert schema.add_table("edge", "b")
    assert schema.add_table("edge", "c") is None
    assert schema.add_table("other", "c")


def test_database_limit():
    """Names in HTTP requests cannot grow the number of databases without bound."""
    schema = Schema(SchemaLimits(databases=1))
    assert schema.add_table("edge", "a")
    assert schema.add_table("other", "a") is None


@pytest.mark.parametrize(
    ("kind", "value", "stored", "reason"),
    [
        (Kind.FLOAT, 1.5, Kind.FLOAT, None),
        (Kind.INT, 2**53, Kind.FLOAT, None),
        (Kind.INT, -(2**53), Kind.FLOAT, None),
        (Kind.INT, 2**53 + 1, Kind.FLOAT, Reason.TYPE_CONFLICT),
        (Kind.FLOAT, 1.0, Kind.INT, Reason.TYPE_CONFLICT),
        (Kind.UINT, 1, Kind.INT, Reason.TYPE_CONFLICT),
        (Kind.UINT, 1, Kind.FLOAT, Reason.TYPE_CONFLICT),
        (Kind.BOOL, True, Kind.STRING, Reason.TYPE_CONFLICT),
        (Kind.TAG, "", Kind.FLOAT, Reason.TAG_FIELD_COLLISION),
        (Kind.FLOAT, 1.0, Kind.TAG, Reason.TAG_FIELD_COLLISION),
    ],
)
def test_check_kind(kind, value, stored, reason):
    """Only an int that a float holds exactly may go into a column of another kind."""
    verdict = check_kind(kind, value, stored)
    assert (verdict and verdict[0]) == reason
