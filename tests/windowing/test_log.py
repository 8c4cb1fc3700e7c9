"""State kept as a log, batch by batch and key by key, against one run over everything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import ARRIVALS, Arrival, arriving, between_commits, shared
from tests.windowing.test_columnar import BOUNDS, CUTS, SCHEMA, SHAPES, STREAMS, Row, assert_same, computed, pipeline
from windowmill.windowing.columnar.added_columns import BATCH, DUE, KIND
from windowmill.windowing.columnar.keyed import GONE, ROW, PartitionTask, StateLog
from windowmill.windowing.columnar.results import result_schema, with_retracted
from windowmill.windowing.errors import StateError
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.watermark import AFTER, BEFORE, COMMIT_SHIFT, Clock, LatenessRule, commits_of

TYPES = {field.name: field.type for field in SCHEMA}
CONDITION = "v > 2"


def arrived(before: list[int], n: int, commits: Sequence[int] | None) -> list[int]:
    """The numbers of the next ``n`` rows, and their ``commits`` added to those of the rows ``before``; each row is one unless given."""
    first = len(before)
    return [(commit << COMMIT_SHIFT) + place for place, commit in enumerate(arriving(before, n, commits), first)]


def places(numbers: np.ndarray[Any, Any]) -> list[int]:
    """The place of each row in the input, from 0."""
    return [number & ((1 << COMMIT_SHIFT) - 1) for number in numbers.tolist()]


def arrive(spec: Pipeline, clock: Clock, times: Ints, numbers: Ints) -> tuple[Clock, Ints]:
    """The clock after a batch of rows with these ``times`` and ``numbers``, and the watermark at each row's arrival."""
    rule, seen = LatenessRule.of(spec), max([clock.seen, *times.tolist()])
    return Clock(rule.lateness, seen, BEFORE if rule.asserted else rule.watermark(seen), clock.watermark), (
        np.full(len(times), BEFORE) if rule.asserted else rule.at_arrival(commits_of(numbers), times, clock.seen)
    )


class Logged:
    """A pipeline whose state is a log; each batch reads the keys that it touches and those that are due, nothing else."""

    def __init__(self, spec: Pipeline) -> None:
        self.spec, self.clock = spec, Clock(spec.time.lateness.elapsed())
        self.log = StateLog(spec, TYPES, (CONDITION,))
        self.entries = self.log.schema.empty_table()
        self.results: list[pa.Table] = []
        self.refused: list[int] = []
        self.commits: list[int] = []
        self.batches = 0

    def feed(self, rows: list[Row], commits: Sequence[int] | None = None, *, final: bool = False) -> None:
        """One batch; ``commits`` are the numbers of the rows' commits, each row is one unless given."""
        numbered = [(number, row) for number, row in zip(arrived(self.commits, len(rows), commits), rows, strict=True)]
        usable = [(number, row) for number, row in numbered if row.t is not None and (row.e is not None or not self.spec.time.end)]
        usable = [(number, row) for number, row in usable if not self.spec.time.end or row.e >= row.t]
        times, numbers = (np.array(column, np.int64) for column in ([row.t for _, row in usable], [number for number, _ in usable]))
        self.clock, met = arrive(self.spec, self.clock, times, numbers)
        own = [
            {
                "_number": number,
                "_time": row.t,
                "_until": row.e if self.spec.time.end else row.t,
                # Where windows are shown once, only late rows need to say which watermark they met.
                "_watermark": int(watermark) if row.t < watermark or self.spec.emit == "revise" else None,
                "_where_0": row.v is not None and row.v > 2,
                **{label: getattr(row, name) for name, label in self.log.columns_of_fresh()},
            }
            for (number, row), watermark in zip(usable, met.tolist(), strict=True)
        ]
        fresh = pa.Table.from_pylist(own, schema=self.log.fresh_schema)
        clock = replace(self.clock, watermark=AFTER) if final else self.clock
        self._work(fresh, PartitionTask(self.spec, self.log, result_schema(self.spec, TYPES), clock, self.batches))
        self.batches += 1

    def _work(self, fresh: pa.Table, task: PartitionTask) -> None:
        touched = set(map(repr, fresh.column("k").to_pylist()))
        due: dict[str, int] = {}
        for entry in self.entries.filter(pc.equal(self.entries.column(KIND), "key")).select(["k", BATCH, DUE]).to_pylist():
            due[repr(entry["k"])] = entry[DUE]
        chosen = touched | {key for key, at in due.items() if at <= task.clock.watermark}
        mask = pa.array([repr(key) in chosen for key in self.entries.column("k").to_pylist()], pa.bool_())
        worked = task.work(self.entries.filter(mask), fresh)
        assert worked.state is not None
        self.entries = pa.concat_tables([self.entries, worked.state])
        self.results += worked.results
        self.refused += places(worked.refused)

    def rows(self) -> list[dict[str, Any]]:
        results = [with_retracted(rows) for rows in self.results] if self.spec.emit == "revise" else self.results
        return pa.concat_tables(results).drop_columns(["batch"]).to_pylist() if results else []


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((row[name] is not None, row[name]) for name in ("k", "window_end", "trigger", "revision", "window_start"))


#: Aggregates have tests of their own; here they only show whether a window holds the right rows.
FEW = ("rows", "float_total", "greatest", "closing", "everything", "own")


def few(window: dict[str, Any], **options: Any) -> Pipeline:
    spec = pipeline(window, **options)
    return spec.model_copy(update={"aggregates": {name: spec.aggregates[name] for name in FEW}})


@pytest.mark.thorough
@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("window", SHAPES)
@shared(2 * len(SHAPES), 3)
@given(rows=STREAMS, cuts=CUTS, arrival=ARRIVALS, bounds=BOUNDS, intervals=st.booleans(), later=st.integers(1, 60))
def test_batches_over_a_log_equal_one_run(
    window: str, emit: str, rows: list[Row], cuts: list[int], arrival: Arrival, bounds: dict[str, int], intervals: bool, later: int
):
    spec = few(SHAPES[window], intervals=intervals, emit=emit, **bounds)
    # A last row of another key takes the watermark on: keys that no row has touched must be found due.
    times = [row.t for row in rows if row.t is not None]
    end = max(times, default=0) + later
    commits = arrival.commits(len(rows))
    cuts = between_commits([cut for cut in cuts if cut <= len(rows)], commits)
    logged = Logged(spec)
    for begin, stop in pairwise([0, *cuts, len(rows)]):
        logged.feed(rows[begin:stop], commits[begin:stop])
    rows = [*rows, Row("z", end, end, None, None, None, None)]
    logged.feed(rows[-1:])
    wanted, quarantined = computed(spec, rows, [], commits=logged.commits, final=False)
    assert_same(sorted(logged.rows(), key=place), sorted(wanted, key=place))
    assert sorted(logged.refused) == [number for number, reason in quarantined if reason == "too_late"]


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("window", SHAPES)
@shared(2 * len(SHAPES), 3)
@given(rows=STREAMS, cut=st.integers(0, 20), arrival=ARRIVALS, bounds=BOUNDS, intervals=st.booleans())
def test_a_batch_that_ends_the_input_gives_what_is_left(
    window: str, emit: str, rows: list[Row], cut: int, arrival: Arrival, bounds: dict[str, int], intervals: bool
):
    spec = few(SHAPES[window], intervals=intervals, emit=emit, **bounds)
    commits = arrival.commits(len(rows))
    [cut] = between_commits([cut], commits)
    logged = Logged(spec)
    logged.feed(rows[:cut], commits[:cut])
    logged.feed(rows[cut:], commits[cut:], final=True)
    wanted, quarantined = computed(spec, rows, [], commits=commits, final=True)
    assert_same(sorted(logged.rows(), key=place), sorted(wanted, key=place))
    assert sorted(logged.refused) == [number for number, reason in quarantined if reason == "too_late"]


def test_entries_grow_with_the_new_rows_and_not_with_the_window():
    spec = pipeline({"type": "count", "count": 100})
    logged = Logged(spec)
    logged.feed([Row("a", time, time, 1, 1.0, "x", True) for time in range(100)])
    before = logged.entries.num_rows
    logged.feed([Row("a", 100, 100, 1, 1.0, "x", True)])
    added = logged.entries.slice(before)
    # The new row is in no closed window yet, the oldest has left the last one, and the key has changed.
    assert sorted(added.column(KIND).to_pylist()) == [GONE, "key", ROW]


def test_a_key_that_is_neither_touched_nor_due_is_not_read():
    spec = pipeline({"type": "count", "count": 3})
    logged = Logged(spec)
    logged.feed([Row("a", 0, 0, 1, 1.0, "x", True), Row("b", 5, 5, 1, 1.0, "x", True)])
    logged.feed([Row("b", 9, 9, 1, 1.0, "x", True)])
    before = logged.entries.num_rows
    logged.feed([Row("b", 12, 12, 1, 1.0, "x", True)])
    assert set(logged.entries.slice(before).column("k").to_pylist()) == {"b"}


def test_rows_without_their_key_are_refused():
    spec = pipeline({"type": "session", "gap": 2})
    logged = Logged(spec)
    logged.feed([Row("a", 0, 0, 1, 1.0, "x", True)])
    rows = logged.entries.filter(pc.equal(logged.entries.column(KIND), ROW))
    with pytest.raises(StateError, match="1 of 1 keys have rows, but no entry of their own"):
        logged.log.read(rows)


def kept_sessions(types: dict[str, pa.DataType], batches: list[list[dict[str, Any]]], **changes: Any) -> list[dict[str, Any]]:
    """Result rows of sessions over rows of any columns, each batch working on all that the log has."""
    window: dict[str, Any] = {"name": "w", "type": "session", "gap": 2}
    written: dict[str, Any] = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", "unit": "none"}, "windows": [window]}
    spec = parse_pipeline({**written, "aggregates": {"n": {"count": "*"}}, **changes})
    log, schema, clock, results = StateLog(spec, types, ()), result_schema(spec, types), Clock(spec.time.lateness.elapsed()), []
    entries, number = log.schema.empty_table(), 0
    for batch, rows in enumerate(batches):
        own = []
        for row in rows:
            own.append({"_number": number << COMMIT_SHIFT, "_time": row["t"], "_until": row["t"]})
            own[-1] |= {label: row.get(name) for name, label in log.columns_of_fresh()}
            number += 1
        times, numbers = (np.array([row[name] for row in own], np.int64) for name in ("_time", "_number"))
        clock, _ = arrive(spec, clock, times, numbers)
        worked = PartitionTask(spec, log, schema, clock, batch).work(entries, pa.Table.from_pylist(own, schema=log.fresh_schema))
        assert worked.state is not None
        entries = pa.concat_tables([entries, worked.state])
        results += [row for table in worked.results for row in table.to_pylist()]
    return results


NOON = datetime(2024, 3, 31, 12, tzinfo=UTC)
KEY_TYPES: dict[str, tuple[pa.DataType, list[Any], int]] = {
    "floats": (pa.float64(), [0.0, -0.0, float("nan"), -float("nan"), None, 1.5], 4),
    "narrow floats": (pa.float32(), [-0.0, 0.0, float("nan"), None], 3),
    "decimals": (pa.decimal128(38, 9), [Decimal("1.5"), Decimal("1.50"), None, Decimal("-12345678901234567890.5")], 3),
    "dates": (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29), None], 3),
    "instants": (pa.timestamp("us", "UTC"), [NOON, NOON.astimezone(ZoneInfo("Europe/Vienna")), None], 2),
    "wall times": (pa.timestamp("us"), [datetime(2024, 3, 31, 2, 30), None], 2),  # noqa: DTZ001
    "booleans": (pa.bool_(), [True, False, None], 3),
    "bytes": (pa.binary(), [b"", b"\x00", None], 3),
}


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_keys_of_any_type_are_found_again(kind: str):
    type_, keys, different = KEY_TYPES[kind]
    types = {"k": type_, "t": pa.int64()}
    rows = [{"k": key, "t": 0} for key in keys]
    found = kept_sessions(types, [rows, rows[::-1], [{"k": keys[0], "t": 99}]])
    assert len(found) == different
    assert sum(row["n"] for row in found) == 2 * len(keys)
    unlike = {repr(key) for key in pa.array([row["k"] for row in found], type_).to_pylist()}
    assert len(unlike) == different
    assert "-0.0" not in unlike


def test_columns_may_be_named_like_the_logs_own():
    names = ["_kind", "_Batch", "_due", "_number", "_time", "_where_0", "_w__keys", "a.b", "a b", "a_b", "é", "  ", "`"]
    types = {name: pa.int64() for name in names} | {"t": pa.int64(), "_key": pa.string()}
    aggregates = {f"total_{place}": {"sum": name} for place, name in enumerate(names)}
    row = {name: 10**place for place, name in enumerate(names)}
    batches = [[{**row, "_key": "x", "t": 0}], [{**row, "_key": "x", "t": 1}], [{"_key": "y", "t": 99}]]
    for keys in (["_key"], ["_kind", "a b", "_number"]):
        [found] = kept_sessions(types, batches, keys=keys, aggregates=aggregates)
        assert [found[name] for name in aggregates] == [2 * value for value in row.values()]
        labels = StateLog(few({"type": "session", "gap": 2}).model_copy(update={"keys": tuple(keys)}), TYPES | types, ()).schema.names
        assert len({label.lower() for label in labels}) == len(labels)
        assert all(re.fullmatch(r"\w+", label) for label in labels)


def told(_state: None, _event: dict[str, Any]) -> tuple[None, int, list[int]]:
    """Windows of one event."""
    return None, 1, []


def test_a_column_that_the_source_gets_later_moves_no_other():
    spec = pipeline({"type": "custom", "function": "tests.windowing.test_log:told"})
    before = StateLog(spec, TYPES | {"a b": pa.int64()}, ())
    after = StateLog(spec, {"a_b": pa.int64(), "A B ": pa.int64()} | TYPES | {"a b": pa.int64()}, ())
    assert set(before.schema) < set(after.schema)
    assert dict(before.columns_of_fresh()).items() < dict(after.columns_of_fresh()).items()
