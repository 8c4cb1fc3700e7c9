"""Numbers of the revisions that a restatement publishes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from windowmill.jobs.batch.corrections import corrections
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.specfile import parse_pipeline

PIPELINE = parse_pipeline(
    {
        "pipeline": "visits",
        "source": {"path": "/s"},
        "sink": {"path": "/k"},
        "time": {"column": "t", "unit": "none"},
        "windows": [{"type": "session", "name": "visit", "gap": 5}],
        "aggregates": {"n": {"count": "*"}},
    }
)
COLUMNS = result_schema(PIPELINE, {"t": pa.int64()})


def _rows(*rows: tuple[int, int, int, int | None]) -> pa.Table:
    """Rows of the sink, by start, end, revision and count; without a count they are retracted."""
    cells = [
        {"window": "visit", "window_start": start, "window_end": end, "revision": revision, "n": n, "batch": 0, RETRACTED: n is None}
        for start, end, revision, n in rows
    ]
    return pa.Table.from_pylist(cells, COLUMNS.append(pa.field(RETRACTED, pa.bool_())))


@pytest.mark.parametrize(
    ("shown", "new", "changed", "retracted"),
    [
        pytest.param([(0, 5, 0, 1)], [(0, 5, 0, 1)], [], [], id="equal"),
        pytest.param([(0, 5, 2, 1)], [(0, 5, 0, 2)], [(0, 5, 3)], [], id="another value"),
        pytest.param([(0, 5, 1, 1)], [(0, 9, 0, 2)], [(0, 9, 3)], [(0, 5, 2)], id="bounds move: above the retraction"),
        pytest.param([(0, 5, 1, None), (0, 9, 5, 2)], [(0, 5, 0, 1)], [(0, 5, 7)], [(0, 9, 6)], id="bounds that were retracted come again"),
        pytest.param([(0, 5, 1, 1), (0, 9, 5, None)], [(0, 5, 0, 2)], [(0, 5, 2)], [], id="another value of bounds that stayed"),
        pytest.param([(0, 5, 1, 1)], [], [], [(0, 5, 2)], id="gone"),
    ],
)
def test_new_rows_have_greater_revisions_than_what_they_take_the_place_of(shown, new, changed, retracted):
    def numbers(rows: pa.Table) -> list[Any]:
        return [(row["window_start"], row["window_end"], row["revision"]) for row in rows.to_pylist()]

    found = corrections(PIPELINE, _rows(*new).drop_columns([RETRACTED]), _rows(*shown), 1, (-100, 100))
    assert (numbers(found.changed), numbers(found.retracted)) == (changed, retracted)
