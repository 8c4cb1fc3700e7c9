"""Parquet files of a folder that differ in the types and names of their columns, or have columns of types that are not read."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.jobs.parquet_cases import DAY, UNREAD, UTC_US, D, groups, write_cases
from tests.jobs.test_folders import Pipe as FolderPipe
from tests.spark.both_readers import NOW, pipeline_over, whole
from windowmill.jobs.cli import main
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.parquet_columns import cast
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.windowing.specfile import parse_pipeline

EPOCH = date(1970, 1, 1)
pytestmark = pytest.mark.local


@pytest.mark.parametrize("int96", groups(), ids=str)
def test_files_that_differ_are_read_in_the_widest_type(tmp_path, int96):
    cases = groups()[int96]
    write_cases(tmp_path / "in", cases)
    pipeline = pipeline_over(tmp_path / "in", source={"path": str(tmp_path / "in"), "format": "parquet"})
    source = open_source(pipeline)
    plain = PlainRows.of(pipeline, source, whole(source))
    assert plain is not None
    kinds = Columns.of(source.schema_json).arrow
    assert {name: kinds[name] for name in cases} == {name: case.kind for name, case in cases.items()}
    rows = plain.read(list(cases), [], latest=pipeline.time.latest(NOW))
    assert rows is not None
    assert {name: rows.column(name).to_pylist() for name in cases} == {name: case.values for name, case in cases.items()}


class Pipe(FolderPipe):
    """A pipeline over a folder of Parquet files with the columns ``k``, ``t`` and others."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        windows = [{"name": "minutes", "type": "tumbling", "size": "1 minute"}]
        super().__init__(folder, "parquet", **{"windows": windows, "aggregates": {"n": {"count": "*"}}} | changes)

    def land(self, name: str, minute: int, **columns: pa.Array) -> None:
        n = len(next(iter(columns.values())))
        own = {"k": pa.array(["a"] * n), "t": pa.array([DAY.replace(minute=minute)] * n, UTC_US)}
        pq.write_table(pa.table(own | columns), self.inputs / f"{name}.parquet")

    def shown(self, *names: str) -> list[Any]:
        rows = DeltaTable(self.spec["sink"]["path"]).to_pyarrow_table().sort_by("window_end").to_pylist()
        return [tuple(row[name] for name in names) for row in rows]

    def refused(self) -> list[dict[str, Any]]:
        rows = DeltaTable(f"{self.spec['sink']['path']}.windowmill/quarantine").to_pyarrow_table().sort_by("detail").to_pylist()
        return [row for row in rows if row["reason"] != "too_late"]

    def told(self) -> list[tuple[str, str]]:
        """Reason and detail of each row in quarantine, from the name of its file on."""
        return [(row["reason"], row["detail"].rpartition("/")[2]) for row in self.refused()]


def test_a_column_that_the_spec_does_not_use_never_matters_and_one_that_it_uses_is_refused_by_name(tmp_path, capsys):
    pipe = Pipe(tmp_path)
    write_cases(pipe.inputs, {}, **UNREAD)
    pipe.run(capsys)
    assert len(pipe.shown("n")) == 3
    for name in UNREAD:
        pipe.spec |= {"aggregates": {"x": {"count": name}}, "sink": {"path": str(tmp_path / name)}}
        pipe.write()
        for command in (["run"], ["validate", "--source"]):
            assert main([command[0], str(pipe.path), *command[1:]]) == 2
            told = capsys.readouterr().err
            assert f"column {name!r} is " in told, told
            assert "0.parquet" in told
            assert "write it in one type that is read, or give the columns as source.options.schema" in told


def test_values_are_compared_when_a_file_has_told_their_type(tmp_path, capsys):
    pipe = Pipe(tmp_path, aggregates={"most": {"max": "v"}})
    pipe.land("0", 0, v=pa.nulls(1))
    assert main(["run", str(pipe.path)]) == 2
    assert "aggregates.most: column 'v' of the source" in capsys.readouterr().err
    pipe.land("1", 0, v=pa.array([9, 10]))
    pipe.land("2", 1, v=pa.array([1]))
    pipe.run(capsys)
    assert pipe.shown("most") == [(10,)]


def test_rows_with_unused_columns_of_nested_types_are_quarantined_with_them(tmp_path, capsys):
    pipe = Pipe(tmp_path)
    nested = {
        "tags": pa.array([["x", None], None, []]),
        "parts": pa.array([{"a": 1, "b": None}, None, {"a": None, "b": [DAY]}], pa.struct([("a", pa.int8()), ("b", pa.list_(UTC_US))])),
        "rates": pa.array([[('q"', 1.5), ("r", None)], [], None], pa.map_(pa.string(), pa.float64())),
        "steps": pa.array([[(1, [True])], None, [(2, None)]], pa.map_(pa.int64(), pa.list_(pa.bool_()))),
    }
    pipe.land("0", 0, **nested)
    pq.write_table(pa.table({"k": ["a"] * 3, "t": pa.array([DAY, None, None], UTC_US), **nested}), pipe.inputs / "0.parquet")
    pipe.run(capsys)
    assert sorted(row["row"] for row in pipe.refused()) == [
        '{"k":"a","t":null,"tags":[],"parts":{"a":null,"b":["2023-03-01T00:00:00.000Z"]},"rates":null,"steps":{"2":null}}',
        '{"k":"a","t":null,"tags":null,"parts":null,"rates":{},"steps":null}',
    ]


def test_a_schema_helps_where_files_have_no_type_in_common(tmp_path, capsys):
    given = {"int_text": "STRING", "time64": "BIGINT", "duration": "BIGINT", "decimal256": "DECIMAL(38, 2)", "bool_int": "INT"}
    schema = ", ".join(f"{name} {kind}" for name, kind in {"K": "STRING", "t": "TIMESTAMP", **given}.items())
    pipe = Pipe(
        tmp_path,
        source={"path": str(tmp_path / "in"), "format": "parquet", "options": {"schema": schema, "mergeSchema": True}},
        keys=[],
        aggregates={name: {"collect": name} for name in given},
        windows=[{"name": "hours", "type": "tumbling", "size": "1 hour"}],
    )
    write_cases(pipe.inputs, {}, **UNREAD)
    pq.write_table(pa.table({"t": pa.array([DAY.replace(hour=5)], UTC_US)}), pipe.inputs / "3.parquet")
    pipe.run(capsys)
    assert pipe.shown(*given) == [(["1", "2", "a", "b"], [1, 2, 1], [1, 2, 1], [1, 2, 1], [1, 0, 1, 2])]


def test_later_files_widen_a_type_and_add_columns_where_the_state_allows_it(tmp_path, capsys):
    pipe = Pipe(tmp_path, aggregates={"total": {"sum": "v"}, "mean": {"mean": "w"}, "high": {"max": "v"}})
    pipe.land("0", 0, v=pa.array([1], pa.int32()), w=pa.array([1], pa.int32()))
    pipe.run(capsys)
    pipe.land("1", 1, V=pa.array([2**40], pa.int64()), w=pa.array([4.5]), other=pa.array([1], pa.time64("us")))
    pipe.run(capsys)
    pipe.land("2", 2, v=pa.array([None], pa.null()), w=pa.array([2], pa.int8()), more=pa.array([1]))
    pipe.land("3", 3, v=pa.array([3], pa.int32()), w=pa.array([None], pa.null()))
    pipe.run(capsys)
    assert pipe.shown("total", "mean", "high") == [(1, 1.0, 1), (2**40, 4.5, 2**40), (None, 2.0, None)]
    source = open_source(parse_pipeline(pipe.spec))
    kinds = {name: str(kind) for name, kind in Columns.of(source.schema_json).arrow.items() if name not in "kt"}
    assert kinds == {"v": "int64", "w": "double", "more": "int64"}


def test_a_file_that_lacks_a_column_of_the_spec_is_refused_by_name_or_allowed(tmp_path, capsys):
    pipe = Pipe(tmp_path, aggregates={"total": {"sum": "v"}, "n": {"count": "*"}})
    pipe.land("0", 0, v=pa.array([1]), other=pa.array([1]))
    pipe.land("1", 1, trip_duration=pa.array([50]))
    assert main(["run", str(pipe.path)]) == 2
    said = capsys.readouterr().err
    assert "1.parquet: has no column 'v', which the spec uses; correct the file, or set source.options.mergeSchema" in said
    pipe.write(options={"mergeSchema": True})
    pipe.land("2", 2, v=pa.array([2]))
    pipe.run(capsys)
    assert pipe.shown("total", "n") == [(1, 1), (None, 1)]


def test_a_value_that_does_not_fit_the_type_of_earlier_files_is_quarantined_with_it(tmp_path, capsys):
    pipe = Pipe(tmp_path, aggregates={"total": {"sum": "v"}, "top": {"max": "w"}})
    pipe.land("0", 0, v=pa.array([1, 2]), w=pa.array(["a", "b"]), unused=pa.array([1, 2]))
    pipe.run(capsys)
    other = pa.array([b"x", b"\xff", b"y"])
    pipe.land("1", 1, v=pa.array([0.5, 30.0, 7.0]), w=other, unused=pa.array(["no number", "3", None]))
    pipe.land("2", 2, v=pa.array(["7", "8.0", "many"]), w=pa.array(["c", "d", "e"]), unused=pa.array([True, False, None]))
    pipe.run(capsys)
    pipe.land("3", 3, v=pa.array([0]))
    pipe.write(options={"mergeSchema": "true"})
    pipe.run(capsys)
    assert pipe.shown("total", "top") == [(3, "b"), (7, "y"), (15, "d")]
    assert pipe.told() == [
        ("cannot_cast", '1.parquet: v: got "0.5"; expected BIGINT'),
        ("cannot_cast", """1.parquet: w: got "b'\\\\xff'"; expected STRING"""),
        ("cannot_cast", '2.parquet: v: got "many"; expected BIGINT'),
    ]


@pytest.mark.parametrize(
    ("stored", "kind", "found"),
    [
        (pa.array([1, 999, 1_000, None]), pa.decimal128(5, 2), [D("1.00"), D("999.00"), None, None]),
        (pa.array([2**64 - 1, 1], pa.uint64()), pa.decimal128(38, 18), [D(2**64 - 1), D(1)]),
        (pa.array([2**64 - 1, 1], pa.uint64()), pa.decimal128(38, 37), [None, D(1)]),
        (pa.array([7, 0, 1, -1]), pa.bool_(), [None, False, True, None]),
        (pa.array([0.5, 0.0, 1.0]), pa.bool_(), [None, False, True]),
        (pa.array([-1, 0, 86_400, 86_401, None]).cast(pa.timestamp("s")), pa.date32(), [None, EPOCH, date(1970, 1, 2), None, None]),
        (pa.array([0, 3_600_000_000]).cast(pa.timestamp("us", "Europe/Vienna")), pa.date32(), [EPOCH, None]),
    ],
    ids=str,
)
def test_values_are_cast_one_by_one_to_the_type_of_earlier_files(stored, kind, found):
    assert cast(stored, kind).to_pylist() == found


DAYS = [DAY + timedelta(days=1), DAY + timedelta(days=1, hours=13, minutes=45), DAY + timedelta(days=3)]


@pytest.mark.parametrize(
    ("first", "times", "total", "told"),
    [
        (pa.array([DAY], UTC_US), pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()), [], '"2147483647"; expected TIMESTAMP'),
        (
            *(pa.array([DAY], UTC_US), pa.array([-(2**62), 0], pa.int64()).cast(pa.timestamp("ms", "UTC")), []),
            '"-4611686018427387904"; expected TIMESTAMP',
        ),
        (pa.array([DAY.date()]), pa.array(DAYS, pa.timestamp("ms")), [(1,), (2,)], '"2023-03-02 13:45:00"; expected DATE'),
    ],
    ids=["a date beyond all instants", "milliseconds beyond all instants", "an instant where earlier files have dates"],
)
def test_an_event_time_that_is_none_of_the_type_is_quarantined_with_its_value(tmp_path, capsys, first, times, total, told):
    pipe = Pipe(tmp_path, aggregates={"total": {"sum": "v"}})
    pipe.land("0", 0, t=first, v=pa.array([1]))
    pipe.run(capsys)
    pipe.land("1", 1, t=times, v=pa.array(range(2, 2 + len(times))))
    pipe.run(capsys)
    assert pipe.shown("total") == total
    assert pipe.told() == [("bad_time", f"1.parquet: t: got {told}")]


@pytest.mark.parametrize("name", ["none.parquet", "x.csv", "cut.parquet", "pages.parquet"])
def test_a_file_that_is_no_parquet_file_or_damaged_is_named(tmp_path, capsys, name):
    pipe = Pipe(tmp_path)
    pipe.land("0", 0, v=pa.array([1]))
    pipe.run(capsys)
    whole = (pipe.inputs / "0.parquet").read_bytes()
    contents = {"none.parquet": b"PAR1 but no footerPAR1", "x.csv": b"k,t\n", "cut.parquet": whole[: len(whole) // 2]}
    (pipe.inputs / name).write_bytes(contents.get(name, whole[:4] + bytes(56) + whole[60:]))
    assert main(["status", str(pipe.path)]) == 0
    capsys.readouterr()
    assert main(["run", str(pipe.path)]) == 2
    assert f"source file {pipe.inputs / name}: is no Parquet file, or damaged (" in capsys.readouterr().err
    (pipe.inputs / name).unlink()
    pipe.run(capsys)
