"""``windowmill try``: JSON lines in, JSON lines out."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.specs import TENS, TICKS, a_spec
from windowmill.jobs.commands.try_command import run_try
from windowmill.windowing.errors import AggregateOverflowError, SourceSchemaError, SpecError, UnsupportedError

LOCAL_ENGINES = ("kernel", "reference")
HOURLY: dict[str, Any] = a_spec(keys=["k"], windows=[{"name": "hourly", "type": "tumbling", "size": "1 hour"}])


def spec_of(**fields: Any) -> dict[str, Any]:
    return HOURLY | fields


def attempt(folder: Path, spec: dict[str, Any], rows: list[Any], **options: Any) -> tuple[list[str], list[str]]:
    """Lines on stdout and on stderr, the same from both engines unless one is named; a row given as text is a line as it stands."""
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    (folder / "rows.jsonl").write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    found = []
    for engine in [options.pop("engine")] if "engine" in options else LOCAL_ENGINES:
        out, err = io.StringIO(), io.StringIO()
        assert run_try(folder / "spec.yaml", folder / "rows.jsonl", engine=engine, stdout=out, stderr=err, **options) == 0
        found.append((out.getvalue().splitlines(), err.getvalue().splitlines()))
    assert found[1:] in ([], found[:1])
    return found[0]


def results(folder: Path, spec: dict[str, Any], rows: list[Any], **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in attempt(folder, spec, rows, **options)[0]]


def test_prints_the_columns_of_a_result_in_order(tmp_path: Path):
    rows = [{"k": "a", "t": "2013-01-01T00:59:59.5Z", "x": 1}]
    spec = spec_of(aggregates={"n": {"count": "*"}, "at": {"max": "t"}, "all": {"collect": "t"}})
    out, err = attempt(tmp_path, spec, rows)
    assert out == [
        '{"k": "a", "window": "hourly", "window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T01:00:00Z", "trigger": null, "revision": 0, "n": 1, "at": "2013-01-01T00:59:59.500000Z", "all": ["2013-01-01T00:59:59.500000Z"]}'  # noqa: E501 - a line as it is printed
    ]
    assert err == []


def in_hour(*hours: float, **cells: Any) -> list[dict[str, Any]]:
    """A row of key a at each of these ``hours`` of a day; the ``cells`` have a list of values each."""
    columns = {"t": [f"2013-01-01T{int(hour):02}:{int(hour % 1 * 60):02}:00Z" for hour in hours]} | cells
    return [{"k": "a"} | dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


TICKING = HOURLY | {"time": TICKS}
OWN = {"use": f"{__name__}:Total", "args": ["v"]}
#: The spec, its rows, columns of the results, and what these show.
SHOWN: dict[str, tuple[dict[str, Any], list[Any], tuple[str, ...], list[tuple[Any, ...]]]] = {
    "instants are UTC unless they say otherwise": (
        spec_of(time={"column": "t", "disorder": "1 hour"}),
        [{"k": "a", "t": text} for text in ("2013-01-01T02:30:00+02:00", "2013-01-01 00:10:00", "2013-01-01")],
        ("window_start", "n"),
        [("2013-01-01T00:00:00Z", 3)],
    ),
    "an integer axis stays integers": (
        TICKING | {"windows": [TENS], "aggregates": {"last": {"last": "t"}}},
        [{"k": None, "t": -3}],
        ("k", "window_start", "window_end", "last"),
        [(None, -10, 0, -3)],
    ),
    "floats that JSON lacks are texts both ways": (
        spec_of(aggregates={"s": {"sum": "v"}, "all": {"collect": "v"}}),
        [{"k": value, "t": "2013-01-01", "v": value} for value in ("-Infinity", 1.5, "Infinity", "NaN")],
        ("k", "s", "all"),
        [(value, value, [value]) for value in ("-Infinity", 1.5, "Infinity", "NaN")],
    ),
    "a column has one type": (
        spec_of(aggregates={"v": {"first": "v"}}),
        [{"k": 1, "t": "2013-01-01", "v": 1}, {"k": "b", "t": "2013-01-01", "v": 2.5}, {"k": True, "t": "2013-01-01"}],
        ("k", "v"),
        [("1", 1.0), ("b", 2.5), ("true", None)],
    ),
    "conditions are Spark SQL": (
        spec_of(
            source={"path": "unused", "filter": "s != 'z'"},
            aggregates={
                "n": {"count": "*"},
                "big": {"count": "*", "where": "v / 2 > 0.5 and s rlike '^x[0-9]$'"},
                "early": {"count": "*", "where": "hour(t) = 0"},
            },
        ),
        in_hour(*[0.2] * 4, v=[1, 5, None, 8], s=["x1", "x2", "y", "z"]),
        ("n", "big", "early"),
        [(3, 1, 3)],
    ),
    "punctuation closes a tumbling window": (
        TICKING | {"windows": [{"name": "w", "type": "tumbling", "evict": {"punctuation": "last"}}]},
        [{"k": "a", "t": t, "last": last} for t, last in ((1, False), (2, True), (3, False))],
        ("window_start", "window_end", "trigger", "n"),
        [(1, 2, 0, 2)],
    ),
    "an own aggregate with an identity gives null for a window of nulls": (
        spec_of(windows=[{"name": "w", "type": "tumbling", "size": "1 hour", "empty": "emit"}], aggregates={"s": OWN}),
        in_hour(0.5, 1.5, 3.5, v=[2, None, 0]),
        ("s",),
        [(2,), (None,), (None,), (0,)],
    ),
}


class Total:
    """A sum with an identity."""

    identity = 0

    def lift(self, value: int) -> int:
        return value

    def combine(self, older: int, newer: int) -> int:
        return older + newer

    def lower(self, total: int) -> int:
        return total


@pytest.mark.parametrize("case", SHOWN)
def test_results_are_shown(tmp_path: Path, case: str):
    spec, rows, columns, wanted = SHOWN[case]
    assert [tuple(row[name] for name in columns) for row in results(tmp_path, spec, rows)] == wanted


def test_lists_of_decimals_keep_their_digits(tmp_path: Path):
    rows = [f'{{"k": "a", "t": "2013-01-01", "v": {number}}}' for number in (2**63, "12345678901234567.89", 1)]
    out, _ = attempt(tmp_path, spec_of(aggregates={"all": {"collect": "v"}, "top": {"top_k": {"column": "v", "k": 2}}}), rows)
    expected = '"all": [9223372036854775808.00, 12345678901234567.89, 1.00], "top": [9223372036854775808.00, 12345678901234567.89]}'
    assert out[0].endswith(expected)


def test_quarantined_rows_say_why_in_the_order_of_the_input(tmp_path: Path):
    rows = [
        {"k": "a", "t": "2013-01-01T05:00:00Z", "v": 1},
        "{broken",
        '["no", "object"]',
        "",
        {"k": "a", "t": None, "v": 1},
        {"k": "a", "t": "soon", "v": 1},
        {"k": "a", "t": 1356998400, "v": 1},
        {"k": "a", "t": "2013-01-01T05:00:00Z", "v": "much"},
        {"k": "a", "t": "2013-01-01T03:00:00Z", "v": 1},
        {"k": "a", "t": "9000-01-01T03:00:00Z", "v": 1},
    ]
    spec = spec_of(time={"column": "t", "max_future_skew": "1 day"}, aggregates={"s": {"sum": "v"}})
    out, err = attempt(tmp_path, spec, rows)
    assert [json.loads(line)["s"] for line in out] == [1]
    told = [json.loads(line) for line in err]
    reasons = ["bad_json", "bad_json", "null_time", "bad_time", "bad_time", "cannot_cast", "too_late", "future_time"]
    assert [(row["line"], row["reason"]) for row in told] == list(zip([2, 3, *range(5, 11)], reasons, strict=True))
    assert "time.unit" in told[4]["detail"]
    assert told[5]["detail"] == 'v: got "much"; expected a number'
    assert told[6]["row"] == rows[8]


def test_without_the_end_of_input_the_watermark_stays(tmp_path: Path):
    rows = in_hour(0, 1, 2)
    assert len(results(tmp_path, HOURLY, rows, final=False)) == 2
    assert len(results(tmp_path, HOURLY, rows)) == 3


def test_a_user_brings_windows_and_aggregates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shop_windows.py").write_text(
        "def pairs(count, event):\n"
        "    count = count or 0\n"
        "    return count + 1, 1, [count - 1] if count else []\n"
        "class Longest:\n"
        "    lift = combine = lower = None\n"
        "    def lift(self, name): return name\n"
        "    def combine(self, older, newer): return max(older, newer, key=len)\n"
        "    def lower(self, name): return name\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = spec_of(
        time={"column": "t", "unit": "none"},
        windows=[{"name": "w", "type": "custom", "function": "shop_windows:pairs"}],
        aggregates={"longest": {"use": "shop_windows:Longest", "args": ["name"]}},
    )
    rows = [{"k": "a", "t": t, "name": name} for t, name in enumerate(["x", "xyz", None, "xy"])]
    found = results(tmp_path, spec, rows)
    assert [(row["window_start"], row["window_end"], row["longest"]) for row in found] == [(0, 2, "xyz"), (1, 3, "xyz"), (2, 4, "xy")]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"engine": "flux"}, UnsupportedError, "--engine flux: not available here; use .*reference"),
        ({"batch_rows": 0}, SpecError, "--batch-rows 0"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, Any], error: type[Exception], says: str):
    with pytest.raises(error, match=says) as raised:
        attempt(tmp_path, HOURLY, [], **options)
    assert raised.value.exit_code == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", LOCAL_ENGINES)
@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        (spec_of(keys=["nokey"]), SourceSchemaError, "^keys.0: column 'nokey' is in none of the 2 rows; the rows have k, t, v"),
        (spec_of(aggregates={"n": {"sum": "w"}}), SourceSchemaError, "^aggregates.n: column 'w' is in none"),
        (spec_of(aggregates={"n": {"count": "*", "where": "w > 1"}}), SourceSchemaError, "^aggregates.n.where: column 'w' is in none"),
        (spec_of(aggregates={"n": {"count": "*", "where": "v > 'x'"}}), SpecError, "condition .*correct it"),
        (spec_of(aggregates={"n": {"count": "*", "where": "v in (select 1 from read_csv('/etc/passwd'))"}}), SpecError, "condition"),
        (spec_of(aggregates={"n": {"use": "nowhere:thing", "args": ["v"]}}), SpecError, "aggregates.n.use: .*PYTHONPATH"),
        (spec_of(windows=[{"name": "w", "type": "custom", "function": "nowhere:f"}]), SpecError, "windows.0.function: .*PYTHONPATH"),
        (spec_of(aggregates={"s": {"sum": "v"}}), AggregateOverflowError, "aggregates.s: sum over"),
    ],
)
def test_what_stops_a_run_is_told(tmp_path: Path, spec: dict[str, Any], error: type[Exception], says: str, engine: str):
    rows = [{"k": "a", "t": "2013-01-01", "v": 2**62}]
    with pytest.raises(error, match=says):
        attempt(tmp_path, spec, rows * 2, engine=engine)


def test_a_process_writes_utf_8_whatever_its_locale(tmp_path: Path):
    attempt(tmp_path, HOURLY, [{"k": "é", "t": "2013-01-01"}])
    command = [sys.executable, "-m", "windowmill.jobs.cli", "try", "spec.yaml", "--input", "rows.jsonl"]
    latin = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path, env=latin, timeout=60)
    assert json.loads(done.stdout.decode())["k"] == "é"


def test_a_missing_input_is_told(tmp_path: Path):
    assert attempt(tmp_path, HOURLY, []) == ([], []), "nothing in, nothing out"
    out, err = attempt(tmp_path, HOURLY, [{"k": "a", "t": None}])
    assert (out, len(err)) == ([], 1)
    with pytest.raises(SpecError, match=r"^--input: .*none.jsonl: cannot be read .*; give a file of JSON lines") as told:
        run_try(tmp_path / "spec.yaml", tmp_path / "none.jsonl")
    assert told.value.exit_code == 2


def test_places_of_tables_need_no_value(tmp_path: Path):
    source = {"path": "${NOWHERE}/in", "filter": "k <> '${NOWHERE}'"}
    spec = HOURLY | {"source": source, "sink": {"path": "${NOWHERE}/out"}}
    with pytest.raises(SpecError, match=r"spec.yaml:\d+: source.filter: the environment variable NOWHERE is not set"):
        attempt(tmp_path, spec, [])
    source["filter"] = "k <> 'z'"
    assert [row["k"] for row in results(tmp_path, spec, [{"k": "a", "t": "2013-01-01"}])] == ["a"]
