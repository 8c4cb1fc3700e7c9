"""Tables that no longer take a batch's files, as their owner has altered them: refused before the record, with what to do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import ArrayType, PrimitiveType

from tests.checkpoints.publishing import written
from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import refuse_misfit
from windowmill.windowing.errors import SinkRefusedError, StateError

SCHEMA = pa.schema([("window", pa.string()), ("n", pa.int32()), ("a", pa.list_(pa.int64()))])
WINDOW, NUMBERS = Field("window", PrimitiveType("string")), Field("a", ArrayType(PrimitiveType("long"), contains_null=False))
N, NOT_NULL = Field("n", PrimitiveType("integer")), Field("n", PrimitiveType("integer"), nullable=False)
M, MADE = (Field("m", PrimitiveType("long"), nullable=False, metadata=metadata) for metadata in ({}, {"delta.generationExpression": "1"}))


def changes(place: str, numbers: list[int | None], **more: Any) -> Changes:
    rows = pa.table({"window": ["w"] * len(numbers), "n": numbers, "a": [[1]] * len(numbers)}, schema=SCHEMA)
    return Changes.of(SCHEMA, written(place, rows, 0), **more)


def table(place: str, *fields: Field, **properties: str) -> DeltaTable:
    return DeltaTable.create(place, Schema([WINDOW, NUMBERS, *fields]), configuration=properties)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ([Field("n", PrimitiveType("long"))], "its column n is now of type long, the results have integer; change it back, or give .* new"),
        ([Field("n", PrimitiveType("short"))], "its column n is now of type short, the results have integer"),
        ([Field("n", ArrayType(PrimitiveType("integer")))], "its column n is now of type array, the results have integer"),
        ([], "has no column n, which the results have; put it back, and run again"),
        ([NOT_NULL], r"n is NOT NULL, .* drop that constraint .* and run again"),
        ([N, M], "its column m is NOT NULL"),
    ],
)
def test_columns_that_do_not_take_the_rows_are_named(tmp_path, fields, told):
    place = str(tmp_path)
    with pytest.raises(SinkRefusedError, match=rf"^sink {place}: .*{told}"):
        refuse_misfit("sink", place, table(place, *fields), changes(place, [1, None]))


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ([N], [1, None]),
        ([NOT_NULL], [1, 2]),
        ([NOT_NULL], []),
        ([N, Field("m", PrimitiveType("long"))], [1, None]),
        ([N, MADE], [1]),
    ],
    ids=["the same", "no nulls", "no rows", "more columns", "made"],
)
def test_columns_that_take_the_rows(tmp_path, fields, numbers):
    place = str(tmp_path)
    refuse_misfit("sink", place, table(place, *fields), changes(place, numbers))


def test_state_gains_the_columns_that_it_lacks_but_keeps_their_types(tmp_path):
    place = str(tmp_path)
    refuse_misfit("state", place, table(place), changes(place, [1]))
    with pytest.raises(StateError, match=r"^state .*: its column m is NOT NULL"):
        refuse_misfit("state", place, table(place + "/other", M), changes(place, [1]))


def test_rows_of_an_append_only_table_are_not_replaced(tmp_path):
    place = str(tmp_path)
    sink = table(place, N, **{"delta.appendOnly": "true"})
    refuse_misfit("sink", place, sink, changes(place, [1]))
    with pytest.raises(SinkRefusedError, match="is append-only, so rows that it has cannot be replaced; unset its property"):
        refuse_misfit("sink", place, sink, changes(place, [1], removes=["old.parquet"], replaces=(0, 1)))
