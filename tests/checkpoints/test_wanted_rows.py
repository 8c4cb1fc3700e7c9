"""Conditions on stored rows: SQL, Arrow and the statistics of a file say the same of any rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import QueryBuilder, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.state.reading import OpenSessions, Wanted, WithSpans, rows_before, rows_of, rows_of_part
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.grids import Selection, Span

COLUMNS = ("_slice", "_level", "_reaching", "_closed", "_gap", "_last", "_batch", "_w__first", "_w__last")
POINTS = st.integers(-3, 3)
ROWS = st.lists(st.fixed_dictionaries({name: st.one_of(st.none(), POINTS) for name in COLUMNS}), min_size=1, max_size=6)
STRETCHES = st.lists(st.tuples(POINTS, POINTS), max_size=2).map(tuple)
REACHING = st.one_of(st.none(), STRETCHES)
NODES = st.lists(st.tuples(st.integers(1, 2), st.lists(POINTS, min_size=1, max_size=2).map(tuple)), max_size=2).map(tuple)
SLICES = st.one_of(st.builds(Span, POINTS, POINTS, REACHING), st.builds(Selection, STRETCHES, NODES, POINTS, POINTS, REACHING))
WANTED = st.one_of(
    SLICES,
    st.builds(OpenSessions, st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple), POINTS),
    st.builds(WithSpans, st.one_of(st.none(), SLICES), st.just(("_w__first", "_w__last"))),
)


def places(rows: pa.Table) -> list[int]:
    return sorted(rows.column("place").to_pylist())


@given(ROWS, WANTED, POINTS)
def test_sql_arrow_and_statistics_agree(tmp_path_factory, rows: list[dict[str, Any]], wanted: Wanted, batch: int):
    schema = pa.schema([*((name, pa.int64()) for name in COLUMNS), ("place", pa.int64())])
    table = pa.Table.from_pylist([row | {"place": place} for place, row in enumerate(rows)], schema)
    path = str(tmp_path_factory.mktemp("state"))
    write_deltalake(path, table)
    [file] = files_of(table_at(path))
    for where in (rows_of(wanted), rows_of_part(wanted), rows_before(batch) & rows_of(wanted)):
        found = places(table.filter(where.expression))
        query = QueryBuilder().register("state", table_at(path)).execute(f"SELECT place FROM state WHERE {where.sql}")
        assert places(pa.table(query.read_all())) == found
        assert where.may_hold(file) or not found
        assert where.may_hold({"num_records": len(rows)})
    # Where all rows have one value in each column, statistics decide.
    of_one = table.filter(pc.field("place") == 0)
    write_deltalake(path, of_one, mode="overwrite")
    [file] = files_of(table_at(path))
    assert rows_before(batch).may_hold(file) == (len(of_one.filter(rows_before(batch).expression)) == 1)
