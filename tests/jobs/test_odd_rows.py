"""Odd rows and inputs: each becomes a result or is set aside with a reason, none is lost, and both local engines agree."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.specs import HOURS, TENS, TICKS, a_spec
from windowmill.jobs.cli import main
from windowmill.jobs.commands.try_command import attempt
from windowmill.windowing.errors import SourceSchemaError, SpecError, WindowmillError
from windowmill.windowing.specfile import parse_pipeline

GOOD = {"k": "a", "t": "2013-01-01T00:30:00Z", "v": 1, "s": "5", "b": True}
LATER = GOOD | {"t": "2013-01-01T05:00:00Z"}
AGGREGATES = {
    "n": {"count": "*"},
    "total": {"sum": "v"},
    "large": {"count": "*", "where": "cast(s as int) > 4"},
    "last": {"max": "t"},
    "known": {"count": "b"},
}
INSTANTS: dict[str, Any] = a_spec(keys=["k"], time={"column": "t", "disorder": "1 day"}, aggregates=AGGREGATES)
INTEGERS = INSTANTS | {
    "time": TICKS | {"disorder": 10},
    "windows": [{"name": "w", "type": "hopping", "size": 10, "hop": 3}, {"name": "x", "type": "session", "gap": 4}],
}
LASTING = INTEGERS | {"time": {"column": "t", "end": "e", "unit": "ms"}, "windows": [TENS]}
TEXTS = [
    *("now", "today", "epoch", "12:30", "tomorrow", "", " ", "soon", "2013", "2013-02-30", "2013-1-1", "20130101", "2013-01-01T24:00"),
    *("0000-01-01", "0001-01-01", "9999-12-31", "9999-12-31T23:59:59.999999Z", "10000-01-01", "-2013-01-01", "2013-01-01T05:00:00+18:00"),
    *("2013-01-01", " 2013-01-01 ", "2013-01-01T05", "2013-01-01T05:10Z", "2013-01-01T05:10:20.123456789Z", "2013-01-01T00:00:00-0030"),
    *("1582-10-10", "1582-10-04T23:59:59Z", "1969-12-31T23:59:59.9999999Z", "1900-01-01", "0001-01-01T00:00:00+01:00", "\ud83d\ude00"),
]
WHOLES = [
    *(0, -0.0, 1, -1, 1.0, 1.5, 1e3, 1e18, 1e19, 1e300, -1e300, 2**31, 2**53 + 1, 2**62 - 1, 2**62, -(2**62), 2**63 - 1, 2**63, -(2**63)),
    *(-(2**63) - 1, 2**64, 10**30, "5", "NaN", "Infinity", "", True, False, None, [], [1], {}, {"a": 1}, "2013-01-01"),
]
VALUES = [None, 1, 1.5, -0.0, 1e300, "NaN", "Infinity", "-Infinity", "much", "", "5", True, [], [1], {"x": 1}, 2**62]
KEYS = [None, "", "a", "A", " a", "é", "e\u0301", "\x00", "a\nb", "\U0001f600", "NaN", 0, 5, -1, 1.5, 2**63, True, False, [1], {"x": 1}]
SAID = [None, "5", "x", "", " 7 ", "+3", "1.5", "1e2", "9223372036854775808", "2147483648", "é", 5, 1.5, True, [1], {"x": 1}]
_LINE = json.dumps(GOOD)
LINES = [
    *("", " ", "\t", "{", "}", "[]", "[1]", "null", "5", '"x"', "true", "{broken", '{"k": }', "{'k': 1}", "NaN", "{}"),
    *('{"t": "2013-01-01"}', "\x00", "[" * 500, '{"k": "a", "k": "b", "t": "2013-01-01", "v": 1, "s": "5", "b": true}'),
    *(_LINE + " " + _LINE, _LINE + ",", _LINE + " ", "  " + _LINE, f"[{_LINE}]", _LINE[:-5], "//" + _LINE, _LINE + "\r"),
    *('{"k": "\\ud800", "t": "2013-01-01", "v": 1, "s": "5", "b": true}', json.dumps(GOOD | {"new": {"deep": [1]}})),
    *(json.dumps({name: value for name, value in GOOD.items() if name != left}) for left in GOOD),
]


def around(line: str) -> str:
    return f"{json.dumps(GOOD)}\n{line}\n{json.dumps(LATER)}\n"


def row(**cells: Any) -> str:
    return around(json.dumps(GOOD | cells))


def whole(at: Any) -> str:
    return "".join(json.dumps(GOOD | {"t": t}) + "\n" for t in (3, at, 7))


def lasting(begin: Any, end: Any) -> str:
    return "".join(json.dumps(GOOD | {"t": t, "e": e}) + "\n" for t, e in ((3, 9), (begin, end), (7, 30)))


CASES: dict[str, tuple[dict[str, Any], str]] = {
    **{f"time {text!r}": (INSTANTS, row(t=text)) for text in TEXTS},
    **{f"time {value!r} for a text": (INSTANTS, row(t=value)) for value in (5, 1.5, True, None, [], {"a": 1}, 1356998400)},
    **{f"whole {value!r}": (INTEGERS, whole(value)) for value in WHOLES},
    **{f"value {value!r}": (INSTANTS, row(v=value)) for value in VALUES},
    **{f"key {value!r}": (INSTANTS, row(k=value)) for value in KEYS},
    **{f"text {value!r}": (INSTANTS, row(s=value)) for value in SAID},
    **{f"line {line!r}"[:60] + f" {n}": (INSTANTS, around(line)) for n, line in enumerate(LINES)},
    **{
        f"from {begin} to {end}": (LASTING, lasting(begin, end))
        for begin, end in [(5, 5), (5, 4), (None, 5), (5, None), (0, 2**62), (-(2**62), 0), (2**63 - 1, 2**63 - 1), ("x", 5), (5, 10**6)]
    },
    "nothing": (INSTANTS, ""),
    "a line end": (INSTANTS, "\n"),
    "no line end": (INSTANTS, json.dumps(GOOD)),
    "windows line ends": (INSTANTS, f"{json.dumps(GOOD)}\r\n{json.dumps(LATER)}\r\n"),
    "a byte order mark": (INSTANTS, f"\ufeff{json.dumps(GOOD)}\n{json.dumps(LATER)}\n"),
    "only a byte order mark": (INSTANTS, "\ufeff"),
    "all times null": (INSTANTS, json.dumps(GOOD | {"t": None}) + "\n"),
    "all times unreadable": (INSTANTS, json.dumps(GOOD | {"t": "soon"}) + "\n"),
}


def outcome(spec: dict[str, Any], data: bytes, engine: str) -> tuple[list[Any], list[Any]] | str:
    """Rows and refusals as text, in which a NaN equals a NaN; or the error, in one line."""
    try:
        found = attempt(parse_pipeline(spec), data, engine=engine, now=1_800_000_000)
    except WindowmillError as err:
        return f"{type(err).__name__}: {err}"
    return [repr(dict(row)) for row in found.rows], [(row.line, row.reason, row.detail, repr(row.row)) for row in found.refused]


@pytest.mark.thorough
@pytest.mark.covers("I1", "I3", "I4", "I8", "I11")
@pytest.mark.parametrize("case", CASES)
def test_engines_agree_and_nothing_is_lost(case):
    spec, text = CASES[case]
    data = text.encode("utf-8", "surrogatepass") if "\ud800" not in text else text.encode()
    found = outcome(spec, data, "reference")
    assert outcome(spec, data, "kernel") == found
    if isinstance(found, str):
        assert "\n" not in found
        return
    rows, refused = found
    lines = [line for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n") if line.strip()]
    if spec is INSTANTS:
        assert sum(int(re.search(r"'n': (\d+)", row)[1]) for row in rows) + len(refused) == len(lines)
    assert len({line for line, *_ in refused}) == len(refused)
    assert {reason for _, reason, *_ in refused} <= {
        *("bad_json", "bad_time", "null_time", "cannot_cast", "bad_condition", "time_out_of_range", "end_before_time", "too_late"),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["time 'now'", "whole 9223372036854775807", "text 'x'"])
def test_the_command_says_the_same(case, tmp_path: Path):
    spec, text = CASES[case]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "windowmill.jobs.cli", "try", str(tmp_path / "spec.yaml"), "--input", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    rows, refused = outcome(spec, text.encode(), "reference")
    assert len(done.stdout.splitlines()) == len(rows)
    assert [json.loads(line)["reason"] for line in done.stderr.splitlines()] == [reason for _, reason, *_ in refused]


@pytest.mark.parametrize("keys", [[0.0, -0.0, None, "NaN", "NaN", 1.5], [None, "", "a", "a"], [True, False, None, True], [0, -1, None, 0]])
@pytest.mark.covers("I3")
def test_keys_that_are_equal_are_one_group(keys):
    data = "".join(json.dumps(GOOD | {"k": key}) + "\n" for key in keys).encode()
    found = outcome(INSTANTS, data, "reference")
    assert outcome(INSTANTS, data, "kernel") == found
    different = {"0.0" if key == 0 and isinstance(key, float) else repr(key) for key in keys}
    assert len(found[0]) == len(different)


def named(name: str, *, key: bool, emit: str) -> tuple[dict[str, Any], bytes]:
    """A pipeline with a column of this name, and rows of which one is late."""
    key_name, value = (name, "v") if key else ("k", name)
    spec = a_spec(keys=[key_name], time=TICKS | {"lateness": 5}, emit=emit, windows=[TENS])
    spec["aggregates"] |= {"high": {"max": value}}
    return spec, "".join(json.dumps({key_name: "a", value: 1, "t": t}) + "\n" for t in (1, 3, 2, 30)).encode()


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("name", ["_arrival", "_order"])
def test_columns_that_late_rows_get_are_taken(name: str, emit: str):
    spec, data = named(name, key=False, emit=emit)
    with pytest.raises(SourceSchemaError, match=f"the column name '{name}' is taken by windowmill"):
        attempt(parse_pipeline(spec), data, 1)


@pytest.mark.parametrize("name", ["_reached", "_sequence"])
def test_keys_are_not_named_like_columns_of_the_state(name: str):
    spec, data = named(name, key=True, emit="final")
    with pytest.raises(SpecError, match=f"keys: '{name}' is taken by a column of the state"):
        attempt(parse_pipeline(spec), data, 1)


#: Texts as Spark makes them of bytes, some of which are not UTF-8.
BYTES = {"k": [b"a", b"b"], "t": [b"2024-01-01T00:00:10Z", b"2024-01-01T00:00:20Z"], "x": [b"1", b"2"]}


def spoiled(folder: Path, column: str) -> str:
    """The spec of a pipeline whose source's second row has such a text in ``column``."""
    cells = {name: pa.array(values) for name, values in (BYTES | {column: [BYTES[column][0], b"\xff\xfe"]}).items()}
    rows = pa.table({name: pa.Array.from_buffers(pa.string(), 2, cell.buffers()) for name, cell in cells.items()})
    write_deltalake(str(folder / "source"), pa.table({name: ["?", "?"] for name in BYTES}))
    [file] = DeltaTable(str(folder / "source")).file_uris()
    pq.write_table(rows, file)
    log = folder / "source" / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"] |= {"size": Path(file).stat().st_size, "stats": json.dumps({"numRecords": 2})}
    log.write_text("\n".join(map(json.dumps, actions)))
    windows = [HOURS | {"size": "1 minute"}]
    fields: dict[str, Any] = {"keys": ["k"], "windows": windows, "quarantine": {"hold": 0.9}, "compute": "local"}
    spec = folder / "p.yaml"
    spec.write_text(yaml.safe_dump(a_spec(folder, **fields, aggregates={"n": {"count": "*"}, "x": {"max": "x"}})))
    return str(spec)


def test_a_time_that_is_not_utf_8_is_quarantined(tmp_path):
    assert main(["run", spoiled(tmp_path, "t")]) == 0
    [row] = DeltaTable(str(tmp_path / "sink.windowmill" / "quarantine")).to_pyarrow_table().to_pylist()
    assert (row["reason"], json.loads(row["row"])) == ("bad_time", {"k": "b", "t": "\ufffd\ufffd", "x": "2"})


@pytest.mark.parametrize("column", ["k", "x"])
def test_a_key_or_value_that_is_not_utf_8_is_refused_before_anything_is_written(tmp_path, capsys, column):
    assert main(["run", spoiled(tmp_path, column)]) == 2
    assert "holds a text that is not UTF-8" in capsys.readouterr().err
    assert not DeltaTable.is_deltatable(str(tmp_path / "sink"))
