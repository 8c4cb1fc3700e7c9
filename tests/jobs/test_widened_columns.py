"""Columns of a source that become wider between batches: sink and state follow, and the results are those of a source that was wide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake import Schema as DeltaSchema

from tests.spark.harness import BASE, MINUTE, Bench, differences, quiet
from windowmill.checkpoints.delta_tables import own_commit
from windowmill.jobs.batch import loop
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.errors import SinkError, SinkRefusedError, SourceSchemaError, StateError

#: Aggregates of numbers of any type, and those whose results of whole numbers are none of other types.
ANY: dict[str, Any] = {
    "low": {"min": "x"},
    "high": {"max": "x"},
    "opening": {"first": "x"},
    "closing": {"last": "x"},
    "top": {"arg_max": ["v", "x"]},
    "by": {"arg_max": ["x", "id"]},
    "highs": {"max_count": "x"},
    "spread": {"stddev_samp": "x"},
    "weight": {"weighted_mean": ["v", "x"]},
    "bins": {"histogram": {"column": "x", "edges": [0, 3, 100]}},
}
MEAN: dict[str, Any] = {"average": {"mean": "x"}}
TOTAL: dict[str, Any] = {"total": {"sum": "x"}, "range": {"range": "x"}}
LISTS: dict[str, Any] = {"all": {"collect": "x"}, "best": {"top_k": {"column": "x", "k": 2}}, "middle": {"median": "x"}}
DIFFERENT: dict[str, Any] = {"different": {"count_distinct": "x"}, "about": {"approx_distinct": "x"}}
D = Decimal
HUNDREDTHS = [D("1.25"), D("-3.5"), D(999)]
#: By case: the types before and after, values of either, and the aggregates of the column.
WIDER: Mapping[str, tuple[pa.DataType, pa.DataType, Sequence[Any], Sequence[Any], Mapping[str, Any]]] = {
    "byte to int": (pa.int8(), pa.int32(), [1, -3, 127], [2**30, -5, 4], ANY | MEAN | TOTAL | LISTS | DIFFERENT),
    "int to bigint": (pa.int32(), pa.int64(), [1, -3, 2**31 - 1], [2**60, -5, 4], ANY | MEAN | TOTAL | LISTS | DIFFERENT),
    "int to double": (pa.int32(), pa.float64(), [1, -3, 2**31 - 1], [0.5, -5.25, 1e300], ANY | MEAN),
    "float to double": (pa.float32(), pa.float64(), [1.5, -3.0, 0.25], [0.1, 1e300, -2.0], ANY | MEAN | TOTAL | LISTS | DIFFERENT),
    "bigint to decimal": (pa.int64(), pa.decimal128(20, 0), [1, -3, 2**62], [D(2**63), D(-5), D(7)], ANY | {"total": {"sum": "x"}}),
    "int to decimal": (pa.int32(), pa.decimal128(20, 3), [1, -3, 2**31 - 1], [D("0.125"), D("-5.5"), D(7)], ANY),
    "decimal": (pa.decimal128(5, 2), pa.decimal128(30, 2), HUNDREDTHS, [D(10**20), D(-5), D(7)], ANY | MEAN | TOTAL | LISTS),
    "finer decimal": (pa.decimal128(5, 2), pa.decimal128(12, 4), HUNDREDTHS, [D("0.0001"), D("1.25"), D("-3.5")], ANY),
}
#: Windows that keep their state in each way there is.
GRIDS: list[dict[str, Any]] = [
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
    {"name": "rolling", "type": "hopping", "size": "40 minutes", "hop": "10 minutes"},
]
WINDOWS: list[dict[str, Any]] = [
    *GRIDS,
    {"name": "visits", "type": "session", "gap": "4 minutes"},
    {"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}},
    {"name": "steps", "type": "count", "count": 3},
]
NEAR = {"name": "near", "type": "sliding", "evict": {"delta": {"column": "x", "by": 4}}, "trigger": {"count": 1}}
#: Cases in which values of a policy keep their kind.
ALIKE = ("byte to int", "int to bigint", "float to double", "decimal")


pytestmark = pytest.mark.local


def rows_of(values: Sequence[Any], first: int) -> list[dict[str, Any]]:
    """Three rows, some minutes apart, and a null behind them."""
    return [
        {"k": "a", "t": BASE + (first + 4 * n) * MINUTE, "v": float(n % 3), "id": f"e{first + n:03d}", "x": x}
        for n, x in enumerate([*values, None])
    ]


def land(bench: Bench, kind: pa.DataType, rows: Sequence[dict[str, Any]]) -> None:
    types = {"k": pa.string(), "t": pa.timestamp("us", "UTC"), "v": pa.float64(), "id": pa.string(), "x": kind}
    bench.append(pa.table({name: pa.array([row[name] for row in rows], each) for name, each in types.items()}))


def retype(table: str, name: str, kind: pa.DataType) -> None:
    """As ``ALTER TABLE … ALTER COLUMN … TYPE`` does under type widening, without the feature: files stay as they are."""
    there = DeltaTable(table)
    [wider] = DeltaSchema.from_arrow(pa.schema([(name, kind)])).fields
    fields = [Field(name, wider.type) if field.name == name else field for field in there.schema().fields]
    # Of no partition no file is removed.
    there.create_write_transaction([], "overwrite", DeltaSchema(fields), partition_filters=[(there.schema().fields[0].name, "=", "")])


def spec_of(case: str, **changes: Any) -> dict[str, Any]:
    time = {"column": "t", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "10 minutes"}
    windows = [*WINDOWS, *([NEAR] if case in ALIKE else [])]
    return {"keys": ["k"], "time": time, "windows": windows, "aggregates": dict(WIDER[case][4]), **changes}


def begun(folder: Path, spec: dict[str, Any], kind: pa.DataType, values: Sequence[Any]) -> Bench:
    """A pipeline that has run over two versions of rows with these ``values``."""
    bench = Bench(folder, spec)
    for first in (0, 20):
        land(bench, kind, rows_of(values, first))
    bench.run(max_batches=1)
    return bench


def go_on(bench: Bench, case: str, *firsts: int) -> None:
    """Runs over wide rows."""
    for first in firsts:
        land(bench, WIDER[case][1], rows_of(WIDER[case][3], first))
        bench.run()


def widened(folder: Path, spec: dict[str, Any], case: str, *, is_wide: bool, savepoint: str | None = None) -> Bench:
    """A pipeline that has run before and behind the widening; ``is_wide`` for a source that has been wide from the start."""
    narrow, wide, before, *_ = WIDER[case]
    bench = begun(folder, spec, wide if is_wide else narrow, before)
    if savepoint is not None:
        savepoints.create(bench.pipeline, quiet(), savepoint)
    if not is_wide:
        retype(bench.source, "x", wide)
    go_on(bench, case, 36, 40, 120)
    return bench


def types_of(bench: Bench) -> dict[str, Any]:
    return {field.name: str(field.type) for field in DeltaTable(bench.sink).schema().fields}


def check_equal(found: Bench, right: Bench) -> None:
    """The tables of ``found`` are those of ``right``, whose source has been wide from the start."""
    assert types_of(found) == types_of(right)
    assert differences(found.rows(), right.rows()) == []


@pytest.mark.covers("S3")
@pytest.mark.parametrize(("case", "emit"), [*zip(WIDER, ("final", "revise") * 4, strict=True), ("int to double", "revise")])
def test_results_are_those_of_a_source_that_has_been_wide_from_the_start(tmp_path, case, emit):
    found, right = (widened(tmp_path / str(is_wide), spec_of(case, emit=emit), case, is_wide=is_wide) for is_wide in (False, True))
    check_equal(found, right)
    assert {row["window"] for row in found.rows()} == {window["name"] for window in found.spec["windows"]}


@pytest.mark.covers("S3")
def test_keys_and_tie_breaks_widen_and_later_commands_go_on(tmp_path):
    """Corrections, recomputed windows, savepoints and a changed spec behind the widening find the tables as if it had never been narrow."""
    narrow, wide = pa.int32(), pa.int64()
    found, right = (
        Bench(
            tmp_path / str(is_wide),
            {
                "source": {"path": str(tmp_path / str(is_wide) / "source"), "changes": "restate"},
                "keys": ["k", "x"],
                "time": {"column": "t", "tie_break": ["x"], "disorder": "5 minutes"},
                "windows": GRIDS,
                "aggregates": {"n": {"count": "*"}, "high": {"max": "x"}, "opening": {"first": "x"}},
            },
        )
        for is_wide in (False, True)
    )
    for bench, kind in ((found, narrow), (right, wide)):
        land(bench, kind, rows_of([7, 7, 8], 0))
        land(bench, kind, rows_of([7, 7, 8], 20))
        bench.run()
        savepoints.create(bench.pipeline, quiet(), "narrow")
        retype(bench.source, "x", wide)
        land(bench, wide, rows_of([7, 2**40, 8], 36))
        bench.run()
        DeltaTable(bench.source).delete("t = '2024-03-01T00:24:00Z'")
        land(bench, wide, rows_of([7, 2**40, 8], 60))
        bench.run()
        loop.backfill(bench.pipeline, quiet(), begin=BASE, end=BASE + 30 * MINUTE)
    check_equal(found, right)
    for bench in (found, right):
        bench.changes["aggregates"]["least"] = {"min": "x"}
        loop.apply(bench.pipeline, quiet(), history=None)
        land(bench, wide, rows_of([7, 2**40, 8], 90))
        bench.run()
    assert differences(found.rows(), right.rows()) == []


@pytest.mark.covers("S3")
def test_a_savepoint_of_before_the_widening_is_restored_behind_it(tmp_path):
    for case in ("int to bigint", "int to double"):
        found, right = (
            widened(tmp_path / f"{case}{is_wide}", spec_of(case, windows=WINDOWS), case, is_wide=is_wide, savepoint="narrow")
            for is_wide in (False, True)
        )
        for bench in (found, right):
            savepoints.restore(bench.pipeline, quiet(), "narrow")
            bench.run()
        check_equal(found, right)


X_TO_DOUBLE = "'x' was int and is now double"


@pytest.mark.covers("S3")
@pytest.mark.parametrize(
    ("case", "aggregates", "told"),
    [
        ("int to double", {"total": {"sum": "x"}}, f"{X_TO_DOUBLE}, by which total of the results would turn from BIGINT into DOUBLE"),
        ("int to double", {"about": {"approx_distinct": "x"}}, f"{X_TO_DOUBLE}, and the state holds partials of its values"),
        ("finer decimal", {"about": {"approx_distinct": "x"}}, "and the state holds partials of its values in the type that they had"),
        ("finer decimal", {"total": {"sum": "x"}}, r"by which total of the results would turn from DECIMAL\(38,2\) into DECIMAL\(38,4\)"),
    ],
    ids=str,
)
def test_what_cannot_widen_is_refused_by_its_column(tmp_path, monkeypatch, case, aggregates, told):
    spec = spec_of(case, windows=GRIDS)
    monkeypatch.setitem(spec, "aggregates", aggregates)
    with pytest.raises(SourceSchemaError, match=rf"source \S+: column .*{told}.*; bring the type back, or rebuild in a new sink$"):
        widened(tmp_path, spec, case, is_wide=False)


def test_a_sink_of_an_earlier_version_with_a_narrower_column_goes_on(tmp_path):
    aggregates = {"range": {"range": "x"}, "n": {"count": "*"}}
    bench = begun(tmp_path, spec_of("int to bigint", windows=GRIDS, aggregates=aggregates), pa.int32(), [1, 4, 9])
    before, table = bench.rows(), DeltaTable(bench.sink)
    old = table.to_pyarrow_table()
    narrow = old.set_column(old.schema.get_field_index("range"), "range", old.column("range").cast(pa.int32()))
    write_deltalake(table, narrow, mode="overwrite", schema_mode="overwrite", commit_properties=own_commit("maintenance"))
    assert types_of(bench)["range"] == 'PrimitiveType("integer")'
    land(bench, pa.int32(), rows_of([1, 4, 9], 60))
    bench.run()
    assert types_of(bench)["range"] == 'PrimitiveType("long")'
    assert [row for row in bench.rows() if row in before] == before
    assert len(bench.rows()) > len(before)


def test_a_sink_that_only_spark_writes_is_widened_by_its_owner(tmp_path):
    bench = begun(tmp_path, spec_of("int to bigint", windows=GRIDS), pa.int32(), [1, 4, 9])
    DeltaTable(bench.sink).alter.add_constraint({"few": "highs < 9"})
    retype(bench.source, "x", pa.int64())
    land(bench, pa.int64(), rows_of([1, 4, 9], 60))
    told = r"its column low is INT and has to be BIGINT now; it has constraints, so widen it by Spark .* run again"
    with pytest.raises(SinkRefusedError, match=told):
        bench.run()


def amid_widening(monkeypatch: pytest.MonkeyPatch, commits: int, act: Callable[[str], None], *, behind: bool) -> list[str]:
    """Have others ``act`` on the table before or ``behind`` this commit of a widening: the sink's schema, its files, the state.

    Returns the tables of the commits, as they are made.
    """
    write, done = DeltaTable.create_write_transaction, list[str]()

    def meeting(self: DeltaTable, *args: Any, **more: Any) -> None:
        is_met = False
        if "widen" in str(more["commit_properties"].custom_metadata):
            done.append(self.table_uri)
            is_met = len(done) == commits
        if is_met and not behind:
            act(self.table_uri)
        write(self, *args, **more)
        if is_met and behind:
            act(self.table_uri)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", meeting)
    return done


def die(_: str) -> None:
    raise KeyboardInterrupt


def rewrite(table: str) -> None:
    DeltaTable(table).optimize.compact()
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})


@pytest.mark.covers("S3")
@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_run_that_dies_behind_a_commit_of_the_widening_is_made_good_by_the_next(tmp_path, monkeypatch, commits):
    case = "int to double"
    narrow, wide, before, after, _ = WIDER[case]
    found, right = (begun(tmp_path / str(kind), spec_of(case), kind, before) for kind in (narrow, wide))
    for bench in (found, right):
        bench.run()
    retype(found.source, "x", wide)
    for bench in (found, right):
        land(bench, wide, rows_of(after, 36))
    with monkeypatch.context() as patched:
        done = amid_widening(patched, commits, die, behind=True)
        with pytest.raises(KeyboardInterrupt):
            found.run()
    assert [uri.rstrip("/").endswith("state") for uri in done] == [False, False, True][:commits]
    for bench in (found, right):
        bench.run()
        go_on(bench, case, 120)
    check_equal(found, right)


@pytest.mark.covers("S3")
@pytest.mark.parametrize(("behind", "commits", "role"), [(False, 1, "sink"), (True, 1, "sink"), (False, 2, "sink"), (False, 3, "state")])
def test_a_commit_of_another_writer_amid_the_widening_is_told_in_a_line_and_the_next_run_goes_on(
    tmp_path, monkeypatch, behind, commits, role
):
    case = "int to double"
    spec = spec_of(case, windows=GRIDS, aggregates={"low": {"min": "x"}})
    narrow, wide, before, after, _ = WIDER[case]
    right, found = widened(tmp_path / "right", spec, case, is_wide=True), begun(tmp_path / "found", spec, narrow, before)
    found.run()
    retype(found.source, "x", wide)
    land(found, wide, rows_of(after, 36))
    told = rf"^{role} \S+: others wrote to it while its columns were widened \([^\n]*\); run again$"
    with monkeypatch.context() as patched:
        amid_widening(patched, commits, rewrite, behind=behind)
        with pytest.raises({"sink": SinkError, "state": StateError}[role], match=told):
            found.run()
    found.run()
    go_on(found, case, 40, 120)
    check_equal(found, right)


@pytest.mark.covers("S3")
def test_a_column_that_dropped_windows_have_left_widens_with_the_spec_that_uses_it_again(tmp_path):
    hourly, newest = {"name": "hourly", "type": "tumbling", "size": "1 hour"}, {"name": "last", "type": "snapshot"}
    spec = {"keys": ["k"], "time": {"column": "t", "tie_break": ["id"]}, "windows": [hourly, newest], "aggregates": {"high": {"max": "x"}}}
    found, right = Bench(tmp_path / "found", spec), Bench(tmp_path / "right", spec)
    for bench, kind in ((found, pa.int32()), (right, pa.int64())):
        land(bench, kind, rows_of([1, 4, 9], 0))
        bench.run()
        bench.changes["windows"] = [hourly]
        loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN)
        if bench is found:
            retype(bench.source, "x", pa.int64())
        land(bench, pa.int64(), rows_of([2**40, 5, 3], 70))
        bench.run()
        bench.changes["windows"] = [hourly, newest]
        loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN)
        land(bench, pa.int64(), rows_of([2**41, 6, 2], 140))
        bench.run()
    check_equal(found, right)
