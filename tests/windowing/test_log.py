"""State kept as a log: what its entries are, keys of any type, and columns of any name."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.windowing.test_columnar import SCHEMA, pipeline
from windowmill.windowing.columnar.added_columns import KIND
from windowmill.windowing.columnar.keyed import GONE, ROW, PartitionTask, StateLog
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.errors import StateError
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.watermark import COMMIT_SHIFT, Clock, LatenessRule

TYPES = {field.name: field.type for field in SCHEMA}


def kept(
    types: dict[str, pa.DataType], batches: list[list[dict[str, Any]]], **changes: Any
) -> tuple[StateLog, pa.Table, list[dict[str, Any]]]:
    """A log of sessions over rows of any columns, its entries and the result rows; each batch works on all that the log has."""
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
        seen = max([clock.seen, *(row["t"] for row in rows)])
        clock = Clock(clock.lateness, seen, LatenessRule.of(spec).watermark(seen), clock.watermark)
        worked = PartitionTask(spec, log, schema, clock, batch).work(entries, pa.Table.from_pylist(own, schema=log.fresh_schema))
        assert worked.state is not None
        entries = pa.concat_tables([entries, worked.state])
        results += [row for table in worked.results for row in table.to_pylist()]
    return log, entries, results


def test_entries_grow_with_the_new_rows_and_not_with_the_window():
    windows, types = [{"name": "w", "type": "count", "count": 100}], {"k": pa.string(), "t": pa.int64()}
    rows = [{"k": "a", "t": time} for time in range(101)]
    _, before, _ = kept(types, [rows[:100]], windows=windows)
    _, after, _ = kept(types, [rows[:100], rows[100:]], windows=windows)
    # The new row is in no closed window yet, the oldest has left the last one, and the key has changed.
    assert sorted(after.slice(before.num_rows).column(KIND).to_pylist()) == [GONE, "key", ROW]


def test_rows_without_their_key_are_refused():
    log, entries, _ = kept({"k": pa.string(), "t": pa.int64()}, [[{"k": "a", "t": 0}]])
    with pytest.raises(StateError, match="1 of 1 keys have rows, but no entry of their own"):
        log.read(entries.filter(pc.equal(entries.column(KIND), ROW)))


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
    _, _, found = kept(types, [rows, rows[::-1], [{"k": keys[0], "t": 99}]])
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
        log, _, [found] = kept(types, batches, keys=keys, aggregates=aggregates)
        assert [found[name] for name in aggregates] == [2 * value for value in row.values()]
        labels = log.schema.names
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
