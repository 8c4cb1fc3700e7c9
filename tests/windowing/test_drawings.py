"""The drawings of docs/semantics.md: what a reader sees there is what both engines give for the events drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from windowmill.testing import try_pipeline

TEXT = (Path(__file__).parents[2] / "docs" / "semantics.md").read_text()
#: What stands before a drawing, and the windows that it is of. Later drawings follow the first of their kind.
POINTS: dict[str, dict[str, Any]] = {
    "**`tumbling`**, size 10:": {"type": "tumbling", "size": 10},
    "**`hopping`**, size 10, hop 5:": {"type": "hopping", "size": 10, "hop": 5},
    "With hop > size (4 and 10)": {"type": "hopping", "size": 4, "hop": 10},
    "Size need not be a multiple of hop (10 and 4)": {"type": "hopping", "size": 10, "hop": 4},
    "**`cumulative`**, size 12, step 4:": {"type": "cumulative", "size": 12, "step": 4},
    "**`session`**, gap 5:": {"type": "session", "gap": 5},
    "With `max_size: 10` a session": {"type": "session", "gap": 5, "max_size": 10},
    "**`snapshot`**:": {"type": "snapshot"},
    "**`count`**, N = 2": {"type": "count", "count": 2},
    "**`custom`** (Cutty)": {"type": "custom", "function": "drawn_trips:trips"},
    "**Interval events**": {"type": "tumbling", "size": 10},
    "**Empty windows**": {"type": "tumbling", "size": 10, "empty": "emit"},
}
SLIDING: dict[str, dict[str, Any]] = {
    "**`sliding`, `evict: {count: 3}`**": {"count": 3},
    "**`evict: {time: 5}`**": {"time": 5},
    "**`evict: {delta: {column: x, by: 5}}`**": {"delta": {"column": "x", "by": 5}},
}
FLUSHING = "**`tumbling` with `evict`**"
#: Values of the interval events, as the text has them.
LEVELS = {"a": 6, "b": 1}


def blocks(anchor: str) -> Iterator[str]:
    """The drawings that follow ``anchor`` up to the next text; the first line of each is its axis."""
    _, _, rest = TEXT.partition(anchor)
    assert rest, f"{anchor} is not in the page"
    parts = rest.split("```")[1].strip("\n").split("\n\n")
    axis = parts[0].split("\n")[0]
    yield parts[0]
    for part in parts[1:]:
        yield f"{axis}\n{part}"


@dataclass
class Drawing:
    """A drawing, its columns as times.

    Attributes
    ----------
    events
        By letter, in the order of arrival, which is the alphabet's: time, end, value of x, state.
    windows
        (start, end, what stands beside it) of each ``[---)``.
    lines
        The lines that hold neither an event nor such a window.
    """

    text: str
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    windows: list[tuple[int, int, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        axis, *lines = self.text.split("\n")
        ticks = [(match.start(2), int(match[0])) for match in re.finditer(r"(-?)(\d+)", axis)]
        (self.column, self.first), (column, second), *_ = ticks
        self.unit = (column - self.column) // (second - self.first)
        assert all(self.time(column) == value for column, value in ticks)
        for line in lines:
            self._read(line)
        self.events = dict(sorted(self.events.items()))

    def time(self, column: int) -> int:
        units, rest = divmod(column - self.column, self.unit)
        assert not rest, f"column {column} stands between two times"
        return self.first + units

    def _read(self, line: str) -> None:
        if window := re.search(r"\[-+\)", line):
            self.windows.append((self.time(window.start()), self.time(window.end() - 1), line[window.end() :].strip()))
        elif "▲" in line:
            self.lines.append(line)
        elif bars := list(re.finditer(r"([a-z])(?:=(\d+))?(?:\[·+(?=\))|─+)(┤?)", line)):
            for bar in bars:
                ends = "·" in bar[0] or bar[3]
                until = self.time(bar.end() - (1 if bar[3] else 0)) if ends else None
                self.events[bar[1]] = {"t": self.time(bar.start()), "e": until, "x": int(bar[2] or 0)}
        else:
            for word in re.finditer(r"go|halt|[a-z]", line):
                at = self.time(word.start())
                if len(word[0]) == 1:
                    self.events[word[0]] = {"t": at}
                else:
                    [event] = [event for event in self.events.values() if event["t"] == at]
                    event["state"] = word[0]

    def run(self, window: dict[str, Any], **aggregates: Any) -> list[dict[str, Any]]:
        """The result rows of the events drawn."""
        points = all(event.get("e") is None for event in self.events.values()) or "evict" in window
        spec = {
            "pipeline": "drawn",
            "time": {"column": "t", "unit": "none", "disorder": 100} | ({} if points else {"end": "e"}),
            "windows": [{"name": "w"} | window],
            "aggregates": {"held": {"collect": "name"}} | aggregates,
        }
        rows = [{"state": "", "name": name, "level": LEVELS.get(name)} | event for name, event in self.events.items()]
        return try_pipeline(spec, rows, engines=["kernel", "reference"], batches="each").rows


@pytest.fixture(autouse=True)
def _trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that the page shows, where specs find it."""
    [code] = re.findall(r"```python\n(def trips.*?)```", TEXT, re.DOTALL)
    (tmp_path / "drawn_trips.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("anchor", POINTS)
def test_windows_are_where_they_are_drawn(anchor: str):
    drawings = [Drawing(text) for text in blocks(anchor)]
    assert len(drawings) == (2 if "session`**" in anchor else 1)
    for drawing in drawings:
        drawn = [(start, end, re.findall(r"\b[a-z]\b", beside)) for start, end, beside in drawing.windows]
        assert len(drawn) > 1
        assert [(row["window_start"], row["window_end"], row["held"] or []) for row in drawing.run(POINTS[anchor])] == drawn


def test_means_over_time_weigh_what_lies_in_the_window():
    [text] = blocks("**Interval events**")
    drawing = Drawing(text)
    rows = drawing.run(POINTS["**Interval events**"], mean={"time_weighted_mean": "level"})
    for row, (start, end, beside) in zip(rows, drawing.windows, strict=True):
        inside = {name: min(event["e"], end) - max(event["t"], start) for name, event in drawing.events.items()}
        drawn = {name: int(units) for name, units in re.findall(r"([a-z]) for (\d+)", beside)}
        assert drawn == {name: units for name, units in inside.items() if units > 0}
        assert row["mean"] == float(beside.split()[-1])


def shown(line: str) -> tuple[str, int, list[list[str]]]:
    """The policy that a line of triggers names, its number, and the letters of each window that it shows."""
    match = re.search(r"(count|time|delta|punctuation)(?:: (\d+))? {2,}(.*)$", line)
    assert match, line
    windows = re.split(" {2,}", match[3])[0].split("│")
    return match[1], int(match[2] or 0), [[] if held.strip() == "nothing" else held.split() for held in windows]


@pytest.mark.parametrize("anchor", SLIDING)
def test_sliding_windows_hold_what_is_drawn_when_they_fire(anchor: str):
    [text] = blocks(anchor)
    drawing, evict = Drawing(text), SLIDING[anchor]
    assert len(drawing.lines) == (1 if "delta" in evict else 3)
    for line in drawing.lines:
        kind, number, held = shown(line)
        trigger = {kind: number} if kind != "delta" else {"delta": {"column": "t", "by": number}}
        rows = drawing.run({"type": "sliding", "evict": evict, "trigger": trigger})
        fired = [drawing.time(match.start()) for match in re.finditer("▲", line)]
        assert [(row["window_end"], row["held"] or []) for row in rows] == list(zip(fired, held, strict=True))
        starts = [min((drawing.events[name]["t"] for name in names), default=None) for names in held]
        assert [row["window_start"] for row in rows] == starts


@pytest.mark.parametrize("anchor", SLIDING)
def test_bars_end_where_tuples_leave(anchor: str):
    [text] = blocks(anchor)
    drawing, evict = Drawing(text), SLIDING[anchor]

    def alive(now: int) -> list[str]:
        lives = [(name, event["t"], event["e"]) for name, event in drawing.events.items()]
        return [name for name, since, until in lives if since < now and (until is None or now <= until)]

    # A tick sees what stands before it: whoever leaves at that very time has not left yet.
    rows = drawing.run({"type": "sliding", "evict": evict, "trigger": {"time": 1}})
    times = [event["t"] for event in drawing.events.values()]
    ticks = range(min(times) + 1, max(times) + 2)
    found = {row["window_end"]: row["held"] for row in rows if row["window_end"] in ticks}
    assert found == {tick: alive(tick) for tick in ticks if alive(tick)}


def test_tumbling_windows_with_policies_flush_where_it_is_drawn():
    [text] = blocks(FLUSHING)
    drawing = Drawing(text)
    assert len(drawing.lines) == 4
    for name, event in drawing.events.items():
        event["last"] = name == "c"
    for line in drawing.lines:
        kind, number, held = shown(line)
        evict = {"delta": {"column": "t", "by": number}, "punctuation": "last"}.get(kind, number)
        rows = drawing.run({"type": "tumbling", "evict": {kind: evict}})
        flushed, oldest = ([drawing.time(match.start()) for match in re.finditer(sign, line)] for sign in "▲├")
        assert [(row["window_end"], row["held"]) for row in rows] == list(zip(flushed, held, strict=True))
        # Windows that tick are drawn side by side: only the first has its oldest tuple marked.
        assert [row["window_start"] for row in rows][: len(oldest)] == oldest


def test_every_drawing_of_windows_is_tried():
    sections = TEXT.split("## Windows over event time")[1].split("## Revisions")[0]
    drawn = [block for block in sections.split("```")[1::2] if not block.startswith("python")]
    tried = [*POINTS, *SLIDING, FLUSHING]
    assert sorted(drawn) == sorted(TEXT.partition(anchor)[2].split("```")[1] for anchor in tried)
