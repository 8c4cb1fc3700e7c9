"""Whether the comparison of a run's rows with DuckDB's finds what is wrong."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks import many_keys
from benchmarks.many_keys import HOUR_US, History, differing

HISTORY = History(3_000, 40, 3)


def results(source: str, hours: int) -> pa.Table:
    """The windows of the first ``hours``, as a run publishes them."""
    second = HOUR_US // 1_000_000
    rows = duckdb.sql(
        f"""
        SELECT k, to_timestamp({second} * (1 + epoch(ts)::BIGINT // {second})) AS window_end,
            count(*) AS n, avg(v) AS mean_v, max(v) AS max_v, stddev_samp(v) AS stddev_v
        FROM read_parquet({DeltaTable(source).file_uris()}) WHERE ts < make_timestamptz({many_keys.START_US + hours * HOUR_US}) GROUP BY ALL
        """
    )
    floats = [(name, pa.float64()) for name in ("mean_v", "max_v", "stddev_v")]
    return rows.to_arrow_table().cast(pa.schema([("k", pa.int64()), ("window_end", pa.timestamp("us", "UTC")), ("n", pa.int64()), *floats]))


@pytest.fixture
def source(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(many_keys, "ROWS_PER_FILE", 700)
    return str(HISTORY.land(tmp_path / "events"))


def test_files_follow_each_other_in_time(source):
    stats = pa.table(DeltaTable(source).get_add_actions(flatten=True)).sort_by("min.ts")
    assert stats.num_rows == 5
    lows, highs = stats["min.ts"].to_pylist(), stats["max.ts"].to_pylist()
    assert all(high < low for high, low in zip(highs[:-1], lows[1:], strict=True))


def changed(rows: pa.Table, column: str, value: object) -> pa.Table:
    cells = [value, *rows[column].to_pylist()[1:]]
    return rows.set_column(rows.schema.get_field_index(column), column, pa.array(cells, rows.schema.field(column).type))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda rows: rows, 0),
        (lambda rows: rows.slice(2), 2),
        (lambda rows: changed(rows, "n", 10_000), 1),
        (lambda rows: changed(rows, "mean_v", 0.5001), 1),
        (lambda rows: changed(rows, "stddev_v", None), 1),
        (lambda rows: rows.filter(pa.compute.equal(rows["window_end"], rows["window_end"][0])), 40),
        (None, 40),
    ],
    ids=["right", "rows missing", "count", "mean", "deviation", "window missing", "window not complete"],
)
def test_wrong_rows_are_counted(source, tmp_path, change, wrong):
    rows = results(source, HISTORY.hours) if change is None else change(results(source, HISTORY.hours - 1))
    write_deltalake(tmp_path / "sink", rows)
    assert differing(HISTORY, source, tmp_path / "sink") == (rows.num_rows, wrong)
