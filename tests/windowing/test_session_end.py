"""An event that is not late joins the session that its time gives it, whatever other keys have sent."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel_runs import KernelRun
from tests.specs import a_spec
from tests.strategies import ARRIVALS, ROW_BY_ROW, Arrival, between_commits, shared
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.specfile import parse_pipeline

GAP, LONGEST = 3, 7


def pipeline(emit: str, *, longest: int | None = None, disorder: int = 0, lateness: int = 0) -> Any:
    cut = {} if longest is None else {"max_size": longest}
    time, window = {"column": "t", "unit": "none", "disorder": disorder, "lateness": lateness}, {"name": "w", "type": "session", "gap": GAP}
    return parse_pipeline(a_spec(keys=["k"], time=time, windows=[window | cut], aggregates={"times": {"collect": "t"}}, emit=emit))


def by_reference(
    spec: Any, rows: list[tuple[str, int]], _cuts: list[int], arrival: Arrival = ROW_BY_ROW
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    found = evaluate(spec, [Record({"k": key, "t": time}) for key, time in rows], commits=arrival.commits(len(rows)))
    return found.rows, found.quarantined


def by_kernel(
    spec: Any, rows: list[tuple[str, int]], cuts: list[int], arrival: Arrival = ROW_BY_ROW
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    engine, commits = KernelRun(spec), arrival.commits(len(rows))
    table = pa.table({"k": pa.array([key for key, _ in rows], pa.string()), "t": pa.array([time for _, time in rows], pa.int64())})
    for begin, end in pairwise([0, *between_commits(cuts, commits), len(rows)]):
        engine.feed(table.slice(begin, end - begin), commits=np.array(commits[begin:end], np.int64))
    return engine.finish(final=True)


ENGINES = pytest.mark.parametrize("engine", [by_reference, by_kernel], ids=["by_reference", "by_kernel"])


@ENGINES
@pytest.mark.parametrize("cuts", [[1, 2, 3], [2]], ids=str)
@pytest.mark.parametrize("emit", ["final", "revise"])
def test_an_event_at_the_end_of_another_keys_session_and_its_own_is_not_late(engine, emit, cuts):
    #  0         3         6
    #  a         b         the watermark is at 3, where a's session ends: an a at 3 still joins it
    #            a
    rows = [("a", 0), ("b", 3), ("a", 3), ("b", 20)]
    found, refused = engine(pipeline(emit), rows, cuts)
    assert refused == []
    assert [row["times"] for row in found if row["k"] == "a"] == [[0, 3]]
    assert {row["revision"] for row in found} == {0}


@pytest.mark.parametrize("cuts", [[1, 2, 3], [2]], ids=str)
def test_an_interval_event_at_the_end_of_its_keys_session_is_not_late(cuts):
    spec = parse_pipeline(
        a_spec(
            keys=["k"],
            time={"column": "t", "end": "e", "unit": "none", "disorder": 0, "lateness": 0},
            windows=[{"name": "w", "type": "session", "gap": GAP}],
            aggregates={"times": {"collect": "t"}},
        )
    )
    # The watermark is at 4, where the session of a's first event ends, when its second one begins there.
    rows = [("a", 0, 1), ("b", 4, 5), ("a", 4, 5), ("b", 30, 31)]
    wanted = evaluate(spec, [Record({"k": key, "t": begin, "e": end}) for key, begin, end in rows], commits=range(4))
    engine = KernelRun(spec)
    for begin, end in pairwise([0, *cuts, len(rows)]):
        engine.feed(pa.Table.from_pylist([{"k": key, "t": t, "e": e} for key, t, e in rows[begin:end]]), commits=np.arange(begin, end))
    found, refused = engine.finish(final=True)
    assert refused == wanted.quarantined == []
    assert [row["times"] for row in found if row["k"] == "a"] == [row["times"] for row in wanted.rows if row["k"] == "a"] == [[0, 4]]


@ENGINES
def test_a_session_cut_by_its_greatest_size_takes_nothing_at_its_end(engine):
    rows = [("a", 0), ("a", 3), ("a", 6), ("b", 7), ("a", 7), ("b", 20)]
    found, refused = engine(pipeline("final", longest=LONGEST), rows, [2, 4])
    assert refused == []
    assert [(row["window_start"], row["window_end"], row["times"]) for row in found if row["k"] == "a"] == [(0, 7, [0, 3, 6]), (7, 10, [7])]


@ENGINES
@pytest.mark.parametrize("longest", [None, LONGEST])
def test_versions_of_a_closed_session_are_forgotten(engine, longest):
    #  0  1  2  3  4  5
    #  a  a  .  .  b  b    shown with 0 through 3, and again, when 1 has come late, through 4; closed with b at 9
    #        a             joins none: a session of its own, from 2 through 5
    rows = [("a", 0), ("b", 4), ("a", 1), ("b", 5), ("a", -90), ("b", 9), ("a", 2), ("b", 20)]
    found, refused = engine(pipeline("revise", longest=longest, lateness=4), rows, [3, 5, 6])
    assert refused == [(4, "too_late")]
    shown = [(row["window_start"], row["window_end"], row["revision"], row["retracted"]) for row in found if row["k"] == "a"]
    assert shown == [(0, 3, 0, False), (0, 3, 1, True), (0, 4, 1, False), (2, 5, 0, False)]


def plain_sessions(times: list[int], longest: int | None) -> list[tuple[int, int, list[int]]]:
    """Sessions of one key's times, as their definition has them."""
    found: list[list[int]] = []
    for time in sorted(times):
        if not found or time - found[-1][-1] > GAP or (longest is not None and time - found[-1][0] >= longest):
            found.append([])
        found[-1].append(time)
    ends = [session[-1] + GAP if longest is None else min(session[-1] + GAP, session[0] + longest) for session in found]
    return [(session[0], end, session) for session, end in zip(found, ends, strict=True)]


#: How far each event's time is past the one before it over all keys; times never go back further than ``disorder`` allows.
STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 0, 1, 2, 3, 3, 4, 9]), st.integers(0, 4)), max_size=16)


@ENGINES
@pytest.mark.parametrize("longest", [None, LONGEST])
@pytest.mark.parametrize("emit", ["final", "revise"])
@shared(8, 30)
@given(steps=STEPS, allowed=st.sampled_from([(0, 0), (4, 0), (0, 4), (2, 2)]), cuts=st.sets(st.integers(0, 16)), arrival=ARRIVALS)
def test_nothing_is_late_where_no_event_comes_later_than_allowed(engine, emit, longest, steps, allowed, cuts, arrival):
    disorder, lateness = allowed
    now, rows = 0, []
    for key, step, back in steps:
        now += step
        rows.append((key, now - min(back, disorder + lateness)))
    spec = pipeline(emit, longest=longest, disorder=disorder, lateness=lateness)
    found, refused = engine(spec, rows, sorted(cut for cut in cuts if cut <= len(rows)), arrival)
    assert refused == []
    greatest = {(row["k"], row["window_start"]): row["revision"] for row in found}  # in the order of revisions
    for key in {key for key, _ in rows}:
        wanted = plain_sessions([time for k, time in rows if k == key], longest)
        latest = [
            (row["window_start"], row["window_end"], row["times"])
            for row in found
            if row["k"] == key and greatest[key, row["window_start"]] == row["revision"] and not _overtaken(row, found)
        ]
        assert latest == wanted


def _overtaken(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Whether a version of greater revision overlaps ``row``."""
    return any(
        other["k"] == row["k"]
        and other["revision"] > row["revision"]
        and other["window_start"] < row["window_end"]
        and row["window_start"] < other["window_end"]
        for other in rows
    )


@ENGINES
@pytest.mark.parametrize("longest", [None, LONGEST])
@shared(4, 30)
@given(steps=STEPS, disorder=st.integers(0, 4), arrival=ARRIVALS)
def test_events_in_time_bring_no_revision(engine, longest, steps, disorder, arrival):
    now, rows = 0, []
    for key, step, back in steps:
        now += step
        rows.append((key, now - min(back, disorder)))
    found, refused = engine(pipeline("revise", longest=longest, disorder=disorder), rows, [], arrival)
    assert refused == []
    assert {row["revision"] for row in found} <= {0}
