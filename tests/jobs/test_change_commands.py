"""``windowmill plan`` and ``apply``: what they say, their exit codes, and plans that are kept. No Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from tests.checkpoints.records import commit
from windowmill.jobs.cli import main
from windowmill.jobs.commands import change_commands, terminal
from windowmill.windowing.settings import COMPUTE

SPEC: dict[str, Any] = {
    "pipeline": "p",
    "time": {"column": "t", "unit": "none"},
    "keys": ["k"],
    "windows": [{"name": "tens", "type": "tumbling", "size": 10}, {"name": "pairs", "type": "tumbling", "evict": {"count": 2}}],
    "aggregates": {"n": {"count": "*"}, "low": {"min": "v"}},
}
AFTER: dict[str, Any] = {
    "windows": [{"name": "fives", "type": "hopping", "size": 10, "hop": 5}, {"name": "tens", "type": "tumbling", "size": 10}],
    "aggregates": {"n": {"count": "*"}, "low": {"min": "v", "where": "v > 0"}, "high": {"max": "v"}},
}
#: What `plan` shows of that change, beside sizes and seconds.
SHOWN = """\
p: the spec has changed since batch 0
├── windows
│   ├── fives  filled from the source: new; its whole history, about 10 rows
│   ├── tens   kept: same meaning; low, high filled from the source in its whole history, about 5 rows
│   └── pairs  dropped: no longer in the spec; what has been published stays
├── aggregates
│   ├── n     kept: same meaning
│   ├── low   filled from the source: where was not given and is "v > 0"; its whole history
│   └── high  filled from the source: new; its whole history
├── reads       1 file (SIZE): source version 0, in the order in which earlier batches read them
├── state       recomputed from the source: the state holds no partials of aggregate low
└── takes       about SECONDS s, 0 Spark tasks
1 window kept, 1 window filled, 1 window dropped, 1 aggregate kept, 2 aggregates filled: \
reads 1 file (SIZE);
`windowmill apply SPEC` does it
"""


class Desk:
    """A spec in a file, the source that it names, and the commands."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.path = folder, capsys, folder / "p.yaml"
        self.land(range(60))
        self.write(SPEC)

    def land(self, times: range) -> None:
        rows = pa.table({"t": list(times), "v": [t % 7 - 3 for t in times], "k": ["a"] * len(times)})
        write_deltalake(str(self.folder / "source"), rows, mode="append")

    def write(self, *changes: dict[str, Any], comment: str = "") -> None:
        places = {name: {"path": str(self.folder / name)} for name in ("source", "sink")}
        fields = {name: value for each in (SPEC, places, *changes) for name, value in each.items()}
        self.path.write_text(f"{comment}{yaml.safe_dump(fields, sort_keys=False)}")

    def call(self, *arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = self.capsys.readouterr()
        return code, out, err


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv(COMPUTE.name, "local")
    monkeypatch.setattr(terminal.console, "width", 160)  # rich takes COLUMNS once, when a console is made
    return Desk(tmp_path, capsys)


def test_nothing_is_planned_before_a_first_run_and_after_what_means_the_same(desk):
    spec = str(desk.path)
    assert desk.call("plan", spec) == (0, f"p: nothing runs yet; `windowmill run {spec}` begins\n", "")
    assert desk.call("apply", spec)[:2] == (0, "p: nothing to do\n")
    desk.call("run", spec)
    windows = [dict(reversed(window.items())) for window in reversed(SPEC["windows"])]
    desk.write({"windows": windows, "schedule": "@daily", "quarantine": {"warn": "never"}}, comment="# reordered\n")
    assert desk.call("plan", spec) == (0, "p: nothing to do: the spec means the same as when batch 0 was computed\n", "")
    assert desk.call("apply", spec)[:2] == (0, "p: nothing to do\n")
    assert json.loads(desk.call("plan", spec, "--json")[1]) == {"pipeline": "p", "status": "nothing to do"}


def test_a_plan_shows_each_window_and_aggregate_with_its_reason(desk, monkeypatch):
    desk.call("run", str(desk.path))
    desk.write(AFTER)
    code, out, err = desk.call("plan", str(desk.path))
    told = json.loads(desk.call("plan", str(desk.path), "--json")[1])
    size = f"{told['reads']['bytes'] / 1000:.1f} kB"
    out = re.sub("takes       about .*, 0 Spark tasks", "takes       about SECONDS s, 0 Spark tasks", out.replace(size, "SIZE"))
    out = out.replace(str(desk.path), "SPEC")
    assert (code, out, err) == (4, SHOWN, "")
    monkeypatch.setattr(terminal.console, "width", 80)
    monkeypatch.chdir(desk.folder)
    narrow = desk.call("plan", desk.path.name)[1]
    assert max(map(len, narrow.splitlines())) <= 80
    narrow, wide = (" ".join(text.replace("│", "").split()) for text in (narrow, out))
    assert narrow.replace(size, "SIZE").replace("apply p.yaml", "apply SPEC").partition(" └── takes")[0] == wide.partition(" └── takes")[0]
    assert narrow.endswith("; `windowmill apply p.yaml` does it")
    assert told["reads"] == {
        "files": 1,
        "bytes": told["reads"]["bytes"],
        "rows": 60,
        "from_version": 0,
        "to_version": 0,
        "order": "log",
        "from_time": None,
    }
    assert [(each["name"], each["fate"], each["rows"]) for each in told["windows"]] == [
        ("fives", "filled", 10), ("tens", "kept", 5), ("pairs", "dropped", None),
    ]  # fmt: skip
    later = json.loads(desk.call("plan", str(desk.path), "--json", "--history", "30")[1])
    assert (told["history"], later["history"], later["tasks"]) == ("all", 30, 0)
    # Of windows that end at 10, 20 … 50 two end after 30.
    assert [each["rows"] for each in later["windows"]] == [4, 2, None]
    assert later["seconds_most"] <= told["seconds_most"]
    code, out, _ = desk.call("plan", str(desk.path), "--history", "none")
    assert "kept: same meaning; its rows have no low, high" in out
    assert "filled from the source: new; what comes from now on" in out


def test_a_kept_plan_is_applied_unless_the_pipeline_or_the_spec_has_moved_on(desk):
    desk.call("run", str(desk.path))
    desk.write(AFTER)
    kept = str(desk.folder / "change.json")
    assert desk.call("plan", str(desk.path), "--out", kept, "--history", "30")[0] == 4
    code, _, err = desk.call("apply", kept, "--history", "all")
    assert (code, "--history: the plan" in err) == (2, True)
    desk.write(AFTER, comment="# edited\n")
    code, _, err = desk.call("apply", kept)
    assert (code, "has changed since; make another plan by `windowmill plan`" in err) == (2, True)
    desk.write(AFTER)
    code, out, _ = desk.call("apply", kept, "--json")
    [batch] = json.loads(out)["batches"]
    assert (code, batch["action"], batch["windows"], batch["window_end_min"]) == (0, "apply", {"fives": 5, "tens": 2}, 35)
    assert desk.call("apply", kept)[:2] == (0, "p: nothing to do\n")
    desk.write({"windows": SPEC["windows"][:1]})
    assert desk.call("plan", str(desk.path), "--out", kept)[0] == 4
    desk.write(AFTER)
    desk.land(range(60, 90))
    desk.call("run", str(desk.path))
    desk.write({"windows": SPEC["windows"][:1]})
    code, _, err = desk.call("apply", kept)
    assert (code, "has moved past the plan, which was not made for batch 3, the next one" in err) == (2, True)


def test_a_plan_that_cannot_be_kept_is_wrong_usage(desk):
    desk.call("run", str(desk.path))
    desk.write(AFTER)
    code, _, err = desk.call("plan", str(desk.path), "--out", str(desk.folder / "missing" / "change.json"))
    assert (
        code,
        err.endswith("cannot be written (No such file or directory); name a file in a folder that exists and may be written\n"),
    ) == (2, True)


def test_what_apply_would_refuse_plan_refuses(desk):
    desk.call("run", str(desk.path))
    desk.write({"keys": []})
    refusals = [desk.call(command, str(desk.path)) for command in ("plan", "apply")]
    assert refusals[0] == refusals[1]
    assert refusals[0][0] == 2
    assert 'keys was ["k"] and is not given; they make another pipeline' in refusals[0][2]


def test_a_change_whose_batch_is_held_is_told_with_the_next_command(desk):
    spec = str(desk.path)
    desk.call("run", spec)
    rule = {"type": "expect_column_values_to_be_between", "column": "high", "max_value": 0}
    desk.write(AFTER, {"expectations": [rule]})
    assert desk.call("apply", spec)[0] == 3
    told = (
        f"p: batch 1, which applies the spec, is held by a quality rule; check its rows in {desk.folder}/sink.windowmill/held, then "
        f"`windowmill release {spec}` or `windowmill discard {spec}`\n"
    )
    for command in ("plan", "apply"):
        assert desk.call(command, spec)[:2] == (3, told)
        assert json.loads(desk.call(command, spec, "--json")[1]) == {"pipeline": "p", "status": "held", "batch": 1}
    assert desk.call("release", spec)[0] == 0
    assert desk.call("plan", spec) == (0, "p: nothing to do: the spec means the same as when batch 1 was computed\n", "")


def test_rows_are_estimated_by_a_window_that_is_kept(desk):
    """Not by one whose step was another one when its rows were published, and not by rows that were published twice."""
    tens, hops = SPEC["windows"][0], {"name": "hops", "type": "hopping", "size": 20, "hop": 2}
    desk.write({"windows": [tens, hops]})
    desk.call("run", str(desk.path))
    ones = {"name": "ones", "type": "tumbling", "size": 1}
    desk.write({"windows": [tens, hops | {"hop": 1}, ones]})
    told = json.loads(desk.call("plan", str(desk.path), "--json")[1])
    assert [(each["name"], each["rows"]) for each in told["windows"]] == [("tens", None), ("hops", 50), ("ones", 50)]
    assert desk.call("apply", str(desk.path))[0] == 0
    desk.write({"windows": [tens, hops | {"hop": 1}, ones], "aggregates": SPEC["aggregates"] | {"high": {"max": "v"}}})
    assert desk.call("apply", str(desk.path))[0] == 0
    desk.write({"windows": [tens, hops | {"hop": 4}, ones], "aggregates": SPEC["aggregates"] | {"high": {"max": "v"}}})
    [found] = [each for each in json.loads(desk.call("plan", str(desk.path), "--json")[1])["windows"] if each["name"] == "hops"]
    assert 10 <= found["rows"] <= 20


def outcome(read: int, published: int, seconds: float) -> Any:
    made = commit(rows_read=read, rows_published=published, timings={"apply": seconds})
    return SimpleNamespace(outcome=made)


@pytest.mark.parametrize(
    ("read", "published", "seconds", "told"),
    [
        (100, 10, (20.0, 20.0), "about 20 s"),
        (100, 100, (20.0, 200.0), "about 20.0 s to 3 min, by what earlier batches took for each row read and for each row published"),
        (300, 10, (20.0, 60.0), "about 20.0 s to 60.0 s, by what earlier batches took for each row read and for each row published"),
        (100, None, (20.0, None), "about 20 s or more: how many rows it publishes is not known"),
        (None, 10, (None, None), "unknown"),
    ],
)
def test_seconds_follow_rows_read_and_rows_published(read, published, seconds, told):
    batches = [outcome(100, 10, 20.0), outcome(5, 500, 1.0)]
    assert change_commands._seconds(batches, read, published) == seconds
    assert change_commands._lasting(*seconds) == told
    assert change_commands._seconds([outcome(100, 0, 20.0)], 100, 10) == (20.0, None)
    assert change_commands._seconds([], 100, 10) == (None, None)
