"""Columns whose types differ from file to file of a folder, with the type and the values that a reader gives; for tests of all readers."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

UTC_US, NAIVE_US = pa.timestamp("us", "UTC"), pa.timestamp("us")
DAY, NOON, LAST = (
    at.replace(tzinfo=None)
    for at in (datetime(2023, 3, 1, tzinfo=UTC), datetime(2023, 3, 1, 12, 0, 0, 123456, UTC), datetime(9999, 12, 31, tzinfo=UTC))
)
D = Decimal


class Case(NamedTuple):
    """A column: its values in each file, null for a file that lacks it, and how all of them are read.

    ``spelt`` are other names of the column in single files. Instants of an ``int96`` file are written as Spark 3, Hive and Impala do.
    """

    files: list[pa.Array | None]
    kind: pa.DataType
    values: list[Any]
    spelt: tuple[str | None, ...] = (None, None)
    int96: tuple[bool, ...] = (False, False)


def _all(kind: pa.DataType, *values: Any) -> pa.Array:
    return pa.array(values, kind)


def _utc(*instants: datetime | None) -> list[datetime | None]:
    return [at and at.replace(tzinfo=UTC) for at in instants]


BIG = 2**40
CASES: dict[str, Case] = {
    "int32_int64": Case([_all(pa.int32(), 1, None), _all(pa.int64(), BIG, 2)], pa.int64(), [1, None, BIG, 2]),
    "int64_int8": Case([_all(pa.int64(), BIG, 1), _all(pa.int8(), -3, None)], pa.int64(), [BIG, 1, -3, None]),
    "int64_double": Case([_all(pa.int64(), 1, 2), _all(pa.float64(), 0.5, None)], pa.float64(), [1.0, 2.0, 0.5, None]),
    "double_int64": Case([_all(pa.float64(), 0.5, None), _all(pa.int64(), 2**53 + 1, 2)], pa.float64(), [0.5, None, 2.0**53, 2.0]),
    "float_double": Case([_all(pa.float32(), 0.5, 1), _all(pa.float64(), 0.1, None)], pa.float64(), [0.5, 1.0, 0.1, None]),
    "int32_float": Case([_all(pa.int32(), 2**24 + 1, 1), _all(pa.float32(), 0.5, 1)], pa.float64(), [2.0**24 + 1, 1.0, 0.5, 1.0]),
    "decimals": Case(
        [_all(pa.decimal128(5, 2), D("1.25"), None), _all(pa.decimal128(9, 4), D("12345.6789"), D("0.0001"))],
        pa.decimal128(9, 4),
        [D("1.2500"), None, D("12345.6789"), D("0.0001")],
    ),
    "int32_decimal": Case(
        [_all(pa.int32(), 7, None), _all(pa.decimal128(5, 2), D("1.25"), D("-1"))],
        pa.decimal128(12, 2),
        [D("7.00"), None, D("1.25"), D("-1.00")],
    ),
    "decimal_double": Case([_all(pa.decimal128(5, 2), D("1.25"), None), _all(pa.float64(), 0.5, 1)], pa.float64(), [1.25, None, 0.5, 1.0]),
    "null_text": Case([pa.nulls(2), _all(pa.string(), "a", None)], pa.string(), [None, None, "a", None]),
    "text_null": Case([_all(pa.string(), "a", None), pa.nulls(2)], pa.string(), ["a", None, None, None]),
    "all_null_double_text": Case([_all(pa.float64(), None, None), _all(pa.string(), "a", "b")], pa.string(), [None, None, "a", "b"]),
    "null_int": Case([pa.nulls(2), _all(pa.int32(), 1, 2)], pa.int32(), [None, None, 1, 2]),
    "all_null_text_int": Case([_all(pa.string(), None, None), _all(pa.int64(), 1, 2)], pa.int64(), [None, None, 1, 2]),
    "null_null": Case([pa.nulls(2), pa.nulls(2)], pa.string(), [None] * 4),
    "dictionary_text": Case(
        [_all(pa.string(), "a", None).dictionary_encode(), _all(pa.string(), "b", "a")], pa.string(), ["a", None, "b", "a"]
    ),
    "text_dictionary": Case(
        [_all(pa.large_string(), "a", None), _all(pa.string(), "b", None).dictionary_encode()], pa.string(), ["a", None, "b", None]
    ),
    "dictionary_int": Case([_all(pa.int64(), 5, 6).dictionary_encode(), _all(pa.int32(), 7, None)], pa.int64(), [5, 6, 7, None]),
    "text_views": Case([_all(pa.string_view(), "a", None), _all(pa.string(), "b", "c")], pa.string(), ["a", None, "b", "c"]),
    "binary_text": Case([_all(pa.binary(), b"a", None), _all(pa.string(), "é", "c")], pa.string(), ["a", None, "é", "c"]),
    "binaries": Case([_all(pa.binary_view(), b"a", None), _all(pa.binary(2), b"bc", b"de")], pa.binary(), [b"a", None, b"bc", b"de"]),
    "ns_us": Case([_all(pa.timestamp("ns"), NOON, None), _all(NAIVE_US, DAY, NOON)], NAIVE_US, [NOON, None, DAY, NOON]),
    "us_ns": Case([_all(UTC_US, DAY, NOON), _all(pa.timestamp("ns", "Europe/Berlin"), NOON, None)], UTC_US, _utc(DAY, NOON, NOON, None)),
    "ms_us": Case([_all(pa.timestamp("ms"), DAY, None), _all(NAIVE_US, NOON, DAY)], NAIVE_US, [DAY, None, NOON, DAY]),
    "zoned_naive": Case([_all(UTC_US, DAY, None), _all(NAIVE_US, NOON, DAY)], UTC_US, _utc(DAY, None, NOON, DAY)),
    "date_instant": Case([_all(pa.date32(), DAY.date(), None), _all(NAIVE_US, NOON, DAY)], NAIVE_US, [DAY, None, NOON, DAY]),
    "dates": Case([_all(pa.date32(), date(2023, 3, 1), None), _all(pa.date64(), DAY.date(), None)], pa.date32(), [DAY.date(), None] * 2),
    "int96": Case([_all(NAIVE_US, NOON, None), _all(NAIVE_US, LAST, DAY)], UTC_US, _utc(NOON, None, LAST, DAY), int96=(True, True)),
    "int96_us": Case([_all(NAIVE_US, NOON, None), _all(UTC_US, DAY, NOON)], UTC_US, _utc(NOON, None, DAY, NOON), int96=(True, False)),
    "ns_int96": Case(
        [_all(pa.timestamp("ns"), NOON, None), _all(NAIVE_US, DAY, NOON)], UTC_US, _utc(NOON, None, DAY, NOON), int96=(False, True)
    ),
    "fee": Case([_all(pa.int64(), 1, 2), _all(pa.int64(), 3, 4)], pa.int64(), [1, 2, 3, 4], spelt=(None, "Fee")),
    "Fees.All": Case([_all(pa.int32(), 1, 2), _all(pa.float64(), 3, 4.5)], pa.float64(), [1.0, 2.0, 3.0, 4.5], spelt=(None, "fees.all")),
    "missing": Case([_all(pa.int32(), 1, 2), None], pa.int32(), [1, 2, None, None]),
    "added": Case([None, _all(pa.int32(), 1, 2)], pa.int32(), [None, None, 1, 2]),
    "unsigned": Case([_all(pa.uint8(), 255, None), _all(pa.uint32(), 2**32 - 1, 1)], pa.int64(), [255, None, 2**32 - 1, 1]),
    "uint64": Case([_all(pa.uint64(), 2**64 - 1, None), _all(pa.int64(), -1, 2)], pa.decimal128(20, 0), [D(2**64 - 1), None, D(-1), D(2)]),
    "half": Case([_all(pa.float16(), 0.5, None), _all(pa.float32(), 1.5, 2)], pa.float32(), [0.5, None, 1.5, 2.0]),
    "decimal32": Case(
        [_all(pa.decimal32(5, 2), D("1.25"), None), _all(pa.decimal64(9, 2), D(2), D(3))],
        pa.decimal128(9, 2),
        [D("1.25"), None, D("2.00"), D("3.00")],
    ),
    "lists": Case(
        [_all(pa.list_(pa.int32()), [1], None), _all(pa.large_list(pa.int64()), [BIG, None], [])],
        pa.list_(pa.field("element", pa.int64())),
        [[1], None, [BIG, None], []],
    ),
    "structs": Case(
        [
            _all(pa.struct([("a", pa.int8())]), {"a": 1}, None),
            _all(pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 2, "b": "x"}, None),
        ],
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": None}, None, {"a": 2, "b": "x"}, None],
    ),
}
#: Types that are not read, each with values of two files.
UNREAD: dict[str, list[pa.Array]] = {
    "time32": [_all(pa.time32("ms"), 1, 2), _all(pa.time32("ms"), 1, None)],
    "time64": [_all(pa.time64("ns"), 1, 2), _all(pa.time64("us"), 1, None)],
    "duration": [_all(pa.duration("us"), 1, 2), _all(pa.duration("s"), 1, None)],
    "decimal256": [_all(pa.decimal256(50, 2), D(1), D(2)), _all(pa.decimal256(50, 2), D(1), None)],
    "list_of_times": [_all(pa.list_(pa.time64("us")), [1], []), _all(pa.list_(pa.time64("us")), [], None)],
    "struct_of_durations": [_all(pa.struct([("d", pa.duration("us"))]), {"d": 1}, None)] * 2,
    "int_text": [_all(pa.int64(), 1, 2), _all(pa.string(), "a", "b")],
    "bool_int": [_all(pa.bool_(), True, False), _all(pa.int64(), 1, 2)],
    "list_int": [_all(pa.list_(pa.int64()), [1], []), _all(pa.int64(), 1, 2)],
}


def groups() -> dict[tuple[bool, ...], dict[str, Case]]:
    """The cases by which of their files are written with INT96, which holds for all instants of a file."""
    found: dict[tuple[bool, ...], dict[str, Case]] = {}
    for name, case in CASES.items():
        found.setdefault(case.int96, {})[name] = case
    return found


def write_cases(folder: Path, cases: dict[str, Case], **others: list[pa.Array]) -> None:
    """Write two files of two rows: key ``k``, event time ``t``, and the columns of ``cases``, of one of :func:`groups`, and ``others``."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        times = [DAY.replace(minute=2 * number), DAY.replace(minute=2 * number + 1)]
        columns = {"k": pa.array(["a", "b"]), "t": pa.array(times, UTC_US)}
        columns |= {case.spelt[number] or name: own for name, case in cases.items() if (own := case.files[number]) is not None}
        columns |= {name: files[number] for name, files in others.items()}
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=any(case.int96[number] for case in cases.values()))
        os.utime(path, (number + 1, number + 1))
