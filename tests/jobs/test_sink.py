"""What publishing asks of Spark, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from windowmill.jobs.batch import sink
from windowmill.windowing.durations import DAY_US


class Writer:
    """Notes how rows are written."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def mode(self, mode: str) -> Writer:
        self.told["mode"] = mode
        return self

    def option(self, name: str, value: str) -> Writer:
        self.told[name] = value
        return self

    def save(self, path: str) -> None:
        self.told["path"] = path


@pytest.mark.covers("P8")
@pytest.mark.parametrize(
    ("instants", "bounds", "condition"),
    [
        (False, (-5, 20), "window_end > -5 AND window_end <= 20"),
        (
            True,
            (0, DAY_US + 1),
            "window_end > TIMESTAMP '1970-01-01 00:00:00.000000 UTC' AND window_end <= TIMESTAMP '1970-01-02 00:00:00.000001 UTC'",
        ),
    ],
)
def test_a_backfill_replaces_the_windows_of_its_range_and_no_others(monkeypatch, instants, bounds, condition):
    writer = Writer()
    monkeypatch.setattr(sink, "writer_once", lambda *_, **__: writer)
    rows: Any = object()
    sink.publish(rows, 1, "/sink", app_id="app", batch=3, metadata="{}", replaces=bounds, instants=instants)
    assert writer.told == {"mode": "overwrite", "replaceWhere": condition, "path": "/sink"}


@pytest.mark.parametrize(
    ("names", "there", "told"),
    [
        (["k", "a.b"], False, {}),
        (["k", "the key"], False, {"delta.columnMapping.mode": "name"}),
        # The names of the columns of a sink that is there are its owner's.
        (["k", "the key"], True, {}),
    ],
)
def test_a_run_appends(monkeypatch, tmp_path, names, there, told):
    writer, path = Writer(), str(tmp_path)
    monkeypatch.setattr(sink, "writer_once", lambda *_, **__: writer)
    if there:
        write_deltalake(path, ROWS)
    rows: Any = SimpleNamespace(columns=names)
    sink.publish(rows, 1, path, app_id="app", batch=3, metadata="{}", replaces=None, instants=True)
    assert writer.told == {"mode": "append", "path": path} | told


ROWS = pa.table({"n": [2], "mean": [1.5], "best": [[0.5, None]]})


def test_only_a_run_into_a_sink_that_is_there_goes_without_spark(tmp_path):
    path = str(tmp_path / "sink")
    assert not sink.takes_table(path, ROWS, None)
    write_deltalake(path, ROWS)
    assert sink.takes_table(path, ROWS, None)
    assert not sink.takes_table(path, ROWS, (0, 10))
    sink.publish(ROWS, 1, path, app_id="app", batch=3, metadata="{}", replaces=None, instants=True)
    assert DeltaTable(path).transaction_version("app") == 3


@pytest.mark.parametrize(
    ("column", "other"),
    [("mean", pa.int64()), ("mean", pa.float32()), ("mean", pa.string()), ("best", pa.list_(pa.int64())), ("n", pa.timestamp("us", "UTC"))],
)
def test_rows_that_delta_rs_would_convert_go_to_spark(tmp_path, column, other):
    path, place = str(tmp_path / "sink"), ROWS.column_names.index(column)
    write_deltalake(path, ROWS.set_column(place, column, pa.nulls(1, other)))
    assert not sink.takes_table(path, ROWS, None)


def test_a_column_of_the_owner_keeps_no_rows_from_delta_rs(tmp_path):
    path = str(tmp_path / "sink")
    write_deltalake(path, ROWS.append_column("note", pa.array(["mine"])))
    assert sink.takes_table(path, ROWS, None)
