"""``windowmill plan`` and ``apply``: what they say, their exit codes, and plans that are kept. No Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.checkpoints.records import commit
from tests.jobs.desk import Desk
from tests.specs import TICKS
from windowmill.jobs.commands import change_commands, terminal

pytestmark = pytest.mark.local
SPEC: dict[str, Any] = {
    "time": TICKS,
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


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(terminal.console, "width", 160)  # rich takes COLUMNS once, when a console is made
    desk = Desk(tmp_path, capsys, **SPEC)
    land(desk, range(60))
    return desk


def land(desk: Desk, times: range) -> None:
    desk.land(t=list(times), v=[t % 7 - 3 for t in times], k=["a"] * len(times))


def test_nothing_is_planned_before_a_first_run_and_after_what_means_the_same(desk):
    assert desk.call("plan") == (0, f"p: nothing runs yet; `windowmill run {desk.path}` begins\n", "")
    assert desk.call("apply")[:2] == (0, "p: nothing to do\n")
    desk.call("run")
    windows = [dict(reversed(window.items())) for window in reversed(SPEC["windows"])]
    desk.write(windows=windows, schedule="@daily", quarantine={"warn": "never"}, comment="# reordered\n")
    assert desk.call("plan") == (0, "p: nothing to do: the spec means the same as when batch 0 was computed\n", "")
    assert desk.call("apply")[:2] == (0, "p: nothing to do\n")
    assert desk.told("plan") == {"pipeline": "p", "status": "nothing to do"}


def test_a_plan_shows_each_window_and_aggregate_with_its_reason(desk, monkeypatch):
    desk.call("run")
    desk.write(**AFTER)
    code, out, err = desk.call("plan")
    told = desk.told("plan", code=4)
    size = f"{told['reads']['bytes'] / 1000:.1f} kB"
    out = re.sub("takes       about .*, 0 Spark tasks", "takes       about SECONDS s, 0 Spark tasks", out.replace(size, "SIZE"))
    out = out.replace(str(desk.path), "SPEC")
    assert (code, out, err) == (4, SHOWN, "")
    monkeypatch.setattr(terminal.console, "width", 80)
    monkeypatch.chdir(desk.folder)
    narrow = desk.call("plan", path=desk.path.name)[1]
    assert max(map(len, narrow.splitlines())) <= 80
    narrow, wide = (" ".join(text.replace("│", "").split()) for text in (narrow, out))
    assert narrow.replace(size, "SIZE").replace("apply p.yaml", "apply SPEC").partition(" └── takes")[0] == wide.partition(" └── takes")[0]
    assert narrow.endswith("; `windowmill apply p.yaml` does it")
    read = {"files": 1, "rows": 60, "from_version": 0, "to_version": 0, "order": "log", "from_time": None}
    assert told["reads"] == read | {"bytes": told["reads"]["bytes"]}
    fates = [(each["name"], each["fate"], each["rows"]) for each in told["windows"]]
    assert fates == [("fives", "filled", 10), ("tens", "kept", 5), ("pairs", "dropped", None)]
    later = desk.told("plan", "--history", "30", code=4)
    assert (told["history"], later["history"], later["tasks"]) == ("all", 30, 0)
    # Of windows that end at 10, 20 … 50 two end after 30.
    assert [each["rows"] for each in later["windows"]] == [4, 2, None]
    assert later["seconds_most"] <= told["seconds_most"]
    code, out, _ = desk.call("plan", "--history", "none")
    assert "kept: same meaning; its rows have no low, high" in out
    assert "filled from the source: new; what comes from now on" in out


def test_a_kept_plan_is_applied_unless_the_pipeline_or_the_spec_has_moved_on(desk):
    desk.call("run")
    desk.write(**AFTER)
    kept = str(desk.folder / "change.json")
    assert desk.call("plan", "--out", kept, "--history", "30")[0] == 4
    code, _, err = desk.call("apply", "--history", "all", path=kept)
    assert (code, "--history: the plan" in err) == (2, True)
    desk.write(**AFTER, comment="# edited\n")
    code, _, err = desk.call("apply", path=kept)
    assert (code, "has changed since; make another plan by `windowmill plan`" in err) == (2, True)
    desk.write(**AFTER)
    code, out, _ = desk.call("apply", "--json", path=kept)
    [batch] = json.loads(out)["batches"]
    assert (code, batch["action"], batch["windows"], batch["window_end_min"]) == (0, "apply", {"fives": 5, "tens": 2}, 35)
    assert desk.call("apply", path=kept)[:2] == (0, "p: nothing to do\n")
    desk.write(windows=SPEC["windows"][:1])
    assert desk.call("plan", "--out", kept)[0] == 4
    desk.write(**AFTER)
    land(desk, range(60, 90))
    desk.call("run")
    desk.write(windows=SPEC["windows"][:1])
    code, _, err = desk.call("apply", path=kept)
    assert (code, "has moved past the plan, which was not made for batch 3, the next one" in err) == (2, True)


def test_a_plan_that_cannot_be_kept_is_wrong_usage(desk):
    desk.call("run")
    desk.write(**AFTER)
    code, _, err = desk.call("plan", "--out", str(desk.folder / "missing" / "change.json"))
    assert code == 2
    assert err.endswith("cannot be written (No such file or directory); name a file in a folder that exists and may be written\n")


def test_what_apply_would_refuse_plan_refuses(desk):
    desk.call("run")
    desk.write(keys=[])
    refusals = [desk.call(command) for command in ("plan", "apply")]
    assert refusals[0] == refusals[1] == (2, "", refusals[0][2])
    assert 'keys was ["k"] and is not given; they make another pipeline' in refusals[0][2]


def test_a_change_whose_batch_is_held_is_told_with_the_next_command(desk):
    desk.call("run")
    rule = {"type": "expect_column_values_to_be_between", "column": "high", "max_value": 0}
    desk.write(**AFTER, expectations=[rule])
    assert desk.call("apply")[0] == 3
    told = (
        f"p: batch 1, which applies the spec, is held by a quality rule; check its rows in {desk.folder}/sink.windowmill/held, then "
        f"`windowmill release {desk.path}` or `windowmill discard {desk.path}`\n"
    )
    for command in ("plan", "apply"):
        assert desk.call(command)[:2] == (3, told)
        assert desk.told(command, code=3) == {"pipeline": "p", "status": "held", "batch": 1}
    assert desk.call("release")[0] == 0
    assert desk.call("plan") == (0, "p: nothing to do: the spec means the same as when batch 1 was computed\n", "")


def test_rows_are_estimated_by_a_window_that_is_kept(desk):
    """Not by one whose step was another one when its rows were published, and not by rows that were published twice."""
    tens, hops = SPEC["windows"][0], {"name": "hops", "type": "hopping", "size": 20, "hop": 2}
    desk.write(windows=[tens, hops])
    desk.call("run")
    changed = {"windows": [tens, hops | {"hop": 1}, {"name": "ones", "type": "tumbling", "size": 1}]}
    desk.write(**changed)
    assert [(each["name"], each["rows"]) for each in desk.told("plan", code=4)["windows"]] == [("tens", None), ("hops", 50), ("ones", 50)]
    for more in ({}, {"aggregates": SPEC["aggregates"] | {"high": {"max": "v"}}}):
        changed |= more
        desk.write(**changed)
        assert desk.call("apply")[0] == 0
    desk.write(**changed | {"windows": [tens, hops | {"hop": 4}, changed["windows"][2]]})
    [found] = [each for each in desk.told("plan", code=4)["windows"] if each["name"] == "hops"]
    assert 10 <= found["rows"] <= 20


def outcome(read: int, published: int, seconds: float) -> Any:
    return SimpleNamespace(outcome=commit(rows_read=read, rows_published=published, timings={"apply": seconds}))


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
