"""Surveys of plain files from statistics: the greatest event time and the watermarks that all rows tell, from few files read."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.specs import TENS, a_spec
from windowmill.jobs.conditions.truths import Conditions
from windowmill.jobs.schedulers.file_rows import Survey, Times, bounds, surveyed, undecided
from windowmill.jobs.sources.base import AddedFile, PlainFile
from windowmill.jobs.sources.plain_files import FilePart, Form
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.windowing.axis import from_us
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.watermark import BEFORE, LatenessRule

_START = 1_700_000_000_000_000
_TYPES = {"t": pa.timestamp("us", "UTC"), "i": pa.int64()}


class _Batch:
    """A batch of files, of which each has some parts of rows with these event times."""

    def __init__(
        self, files: list[list[list[int]]], commits: list[int], *, disorder: int = 5_000, lateness: int = 0, stats: bool = True, **own: Any
    ) -> None:
        pipeline = parse_pipeline(a_spec(windows=[{"name": "w", "type": "tumbling", "size": "1 minute"}]))
        added = [AddedFile(f"{n}", commits[n], 1, None, stats=_stats([*chain(*parts)]) if stats else None) for n, parts in enumerate(files)]
        given = {"seen": None, "snapshot_files": 0, "closed_by_file": None, "latest": None, "first_row": 0, "types": _TYPES} | own
        rule = LatenessRule(disorder, lateness)
        self.input: Any = SimpleNamespace(
            pipeline=pipeline, reading=SimpleNamespace(files=added), rule=rule, commits=tuple(commits), **given
        )
        self.parts, self.times = [], []
        for index, parts in enumerate(files):
            first, file = 0, PlainFile(f"{index}", {"t": "t"}, {})
            for times in parts:
                self.parts.append(FilePart(index, file, (), first, len(times), 1))
                self.times.append(times)
                first += len(times)
        self.plain = PlainRows(pipeline, (), (), Form(_TYPES), Conditions(()))
        self.read: list[int] = []

    def survey(self, *, every: bool = False) -> Survey:
        files, times = [part.index for part in self.parts], bounds(self.input, self.plain, self.parts)
        self.read = undecided(self.input, files, times, every=every)
        for number in self.read:
            times[number] = self._known(number)
        return surveyed(self.input, files, times, every=every)

    def _known(self, number: int) -> Times:
        times, part = self.times[number], self.parts[number]
        return Times(len(times), part.first + len(times), min(times), max(times), max(times))

    def seen_before(self, number: int) -> int:
        """Greatest event time of the commits before that of a part, by all rows."""
        commits = [self.input.commits[part.index] for part in self.parts]
        earlier = [max(times) for commit, times in zip(commits, self.times, strict=True) if commit < commits[number]]
        return max([*earlier, BEFORE if self.input.seen is None else self.input.seen])


def _stats(times: list[int]) -> str:
    def cut(at: int) -> str:
        return (from_us(at) - timedelta(microseconds=at % 1_000)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return json.dumps({"numRecords": len(times), "minValues": {"t": cut(min(times))}, "maxValues": {"t": cut(max(times))}})


@pytest.mark.parametrize("seed", range(150))
def test_statistics_and_the_files_read_tell_what_all_rows_tell(seed):
    rng = random.Random(seed)
    files, now = [], _START
    for _ in range(rng.randrange(1, 9)):
        parts = []
        for _ in range(rng.randrange(1, 4)):
            parts.append([now - rng.choice([0, 0, rng.randrange(20_000)]) + rng.randrange(3_000) for _ in range(rng.randrange(1, 6))])
            now += rng.choice([0, 1, 500, 4_000, 60_000])
        files.append(parts)
    commits = sorted(rng.randrange(4) for _ in files)
    batch = _Batch(files, commits, seen=rng.choice([None, _START, now + 1_000]), snapshot_files=rng.choice([0, 0, 1]))
    found = batch.survey()
    assert found.seen == max([max(map(max, batch.times)), batch.input.seen or BEFORE])
    assert found.rows == sum(map(len, batch.times))
    lows = []
    for number, (part, times) in enumerate(zip(batch.parts, batch.times, strict=True)):
        seen, watermark = batch.seen_before(number), found.watermarks[number]
        if seen > BEFORE and min(times) < seen - batch.input.rule.disorder and part.index >= batch.input.snapshot_files:
            lows.append(min(times))
            assert watermark is not None, "a part with late rows"
        if watermark is not None and part.index >= batch.input.snapshot_files and seen > BEFORE:
            assert watermark == seen - batch.input.rule.disorder
    assert not lows or found.low <= min(lows)


def test_only_files_that_may_hold_the_greatest_time_are_read():
    files = [[[_START + n * 1_000_000, _START + n * 1_000_000 + 999]] for n in range(50)]
    batch = _Batch(files, list(range(50)))
    found = batch.survey()
    assert (batch.read, found.watermarks) == ([49], (None,) * 50)
    assert (found.seen, found.low, found.has_late) == (files[-1][0][1], None, False)


def test_files_before_a_late_row_are_read_as_far_as_they_tell_the_watermark():
    files = [[[_START + n * 1_000_000]] for n in range(20)]
    files[12] = [[_START]]
    batch = _Batch(files, list(range(20)))
    found = batch.survey()
    assert batch.read == [11, 19]
    assert [number for number, at in enumerate(found.watermarks) if at is not None] == [12]
    assert (found.watermarks[12], found.low) == (_START + 11_000_000 - 5_000, _START)


_UNREADABLE = '{"minValues": {"t": "x"}, "maxValues": {"t": "x"}}'


@pytest.mark.parametrize("stats", [None, "{}", _UNREADABLE, "wide"], ids=["none", "empty", "unreadable", "wide"])
def test_files_without_tight_bounds_are_read(stats):
    batch = _Batch([[[_START]], [[_START + 10_000_000]]], [0, 1])
    stats = json.dumps(json.loads(_stats([_START])) | {"tightBounds": False}) if stats == "wide" else stats
    batch.input.reading.files[0] = AddedFile("0", 0, 1, None, stats=stats)
    assert (batch.survey().seen, batch.read) == (_START + 10_000_000, [0, 1])


def test_times_that_may_not_be_accepted_are_read():
    files = [[[_START]], [[_START + 10_000_000]]]
    assert _Batch(files, [0, 1], latest=_START + 20_000_000).survey().seen == _START + 10_000_000
    batch = _Batch(files, [0, 1], latest=_START + 5_000_000)
    batch.survey()
    assert batch.read == [0, 1], "the first one may now hold the greatest time that is accepted"


def test_every_watermark_is_known_if_asked_for_and_vouched_times_tell_what_is_late():
    batch = _Batch([[[_START + n * 1_000_000]] for n in range(5)], list(range(5)))
    found = batch.survey(every=True)
    assert found.watermarks[1:] == tuple(_START + n * 1_000_000 - 5_000 for n in range(4))
    assert (found.low, found.has_late) == (None, False)
    assert batch.read == [0, 1, 2, 3, 4]
    vouched = _Batch([[[_START]], [[_START + 10]]], [0, 1], closed_by_file=(_START + 5, _START + 5), lateness=2)
    assert vouched.survey().watermarks == (_START + 7, None)
    assert _Batch([[[_START]]], [0], closed_by_file=(_START - 5_000,)).survey().watermarks == (None,)


def test_integers_are_exact():
    batch = _Batch([[[5, 9]], [[7, 8]]], [0, 1], disorder=3)
    batch.input.pipeline = parse_pipeline(a_spec(time={"column": "i", "unit": "s"}, windows=[TENS]))
    for number, (low, high) in enumerate([(5, 9), (7, 8)]):
        stats = json.dumps({"minValues": {"i": low}, "maxValues": {"i": high}})
        batch.input.reading.files[number] = AddedFile(f"{number}", number, 1, None, stats=stats)
        batch.parts[number] = FilePart(number, PlainFile("f", {"i": "i"}, {}), (), 0, 2, 1)
    found = batch.survey()
    assert (found.seen, batch.read, found.watermarks) == (9, [], (None, None))
