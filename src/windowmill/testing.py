"""Tests of pipelines: rows in, rows out, in milliseconds, without Spark, Airflow or tables.

A plugin of pytest, found by it where windowmill is installed. Its fixture ``try_pipeline`` is :func:`try_pipeline`, except that
relative paths of specs begin at the test's own folder::

    def test_a_late_flight_counts_in_the_hour_it_left(try_pipeline):
        outcome = try_pipeline(
            "airport_delays.yaml",
            [{"origin": "JFK", "departed_at": "2013-01-01T10:05:00Z", "delay": 12}],
            engines=["kernel", "reference"],
            batches="each",
        )
        outcome.expect([{"origin": "JFK", "window_end": "2013-01-01T11:00:00Z", "flights": 1}])

:func:`check_aggregate` tries the laws on an aggregate of one's own.
"""

# pytest loads this module at the start of every run, so whatever computes is imported when it is used.
from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from windowmill.windowing.spec import Pipeline

    Spec = Pipeline | Mapping[str, Any] | str | os.PathLike[str]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row that was not applied: its index among the rows, why, what exactly (or ``None``), and the row itself."""

    index: int
    reason: str
    detail: str | None
    row: Row


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pipeline makes of rows.

    Attributes
    ----------
    rows
        Result rows in (key, window, window_end, trigger, revision) order, their values as ``windowmill try`` prints them: instants, and
        the floats that JSON lacks, are texts.
    quarantined
        In the order of the input.
    """

    rows: list[dict[str, Any]]
    quarantined: list[Quarantined]

    def expect(self, rows: Sequence[Row], quarantined: Mapping[int, str] | None = None) -> None:
        """Fail unless the result rows are ``rows``, in any order, in the columns that ``rows`` name.

        Parameters
        ----------
        rows
            Each with the same columns, or fewer; floats may differ by a billionth of the greater.
        quarantined
            Reasons by the rows' indexes; not looked at unless given.

        Raises
        ------
        AssertionError
            Saying of each row that is not as expected in which columns it differs, which are missing, and which come unexpected.
        """
        __tracebackhide__ = True
        differences = _differences(rows, self.rows)
        reasons = {row.index: row.reason for row in self.quarantined}
        if quarantined is not None and reasons != quarantined:
            differences.append(f"quarantined: expected {dict(quarantined)}, got {reasons}")
        if differences:
            raise AssertionError("\n".join(["the outcome is not as expected:", *differences]))


def try_pipeline(
    spec: Spec,
    rows: Sequence[Row],
    *,
    engines: str | Sequence[str] = "kernel",
    batches: str | int | Sequence[str | int] = "whole",
    final: bool = True,
    now: datetime.datetime | None = None,
    commit_rows: int = 1,
) -> Outcome:
    """Run a pipeline over ``rows``, as ``windowmill try`` does, on every engine and however the rows are cut into batches.

    Parameters
    ----------
    spec
        A pipeline, the same as nested mappings, or the path of its YAML file. Source and sink are not used, except for the source's filter.
    rows
        In the order of arrival. Values are what JSON has, and dates and datetimes; without a zone they are UTC.
    engines
        ``kernel`` and ``reference``, one or both; the first one's results are given.
    batches
        ``"each"``: also commit by commit; a number: also in batches of so many rows; or several of these. The whole input in one
        batch is always tried, and is what is given. A batch takes whole commits, so it may have more rows.
    final
        Whether the watermark goes to infinity at the end of the rows; without it, windows that are not closed give no row.
    now
        What ``max_future_skew`` counts from; the present unless given.
    commit_rows
        Rows per commit. The rows of a commit arrive together: none is late to another.

    Raises
    ------
    AssertionError
        If two engines or two cuts differ: of windowmill's own doing, or because a function of yours remembers what it should not.
    WindowmillError
        If the spec is wrong or the run cannot go on, with the message that the command would print.

    Examples
    --------
    >>> spec = {
    ...     "pipeline": "visits",
    ...     "keys": ["page"],
    ...     "time": {"column": "at", "unit": "s"},
    ...     "windows": [{"name": "tens", "type": "tumbling", "size": 10}],
    ...     "aggregates": {"n": {"count": "*"}},
    ... }
    >>> outcome = try_pipeline(spec, [{"page": "a", "at": 3}, {"page": "a", "at": 8}, {"page": "a", "at": 12}], batches="each")
    >>> outcome.expect([{"window_start": 0, "n": 2}, {"window_start": 10, "n": 1}], quarantined={})
    """
    from windowmill.jobs.commands.try_command import attempt
    from windowmill.jobs.json_lines import result_lines
    from windowmill.windowing.specfile import load_pipeline, parse_pipeline

    pipeline = load_pipeline(spec, opens_tables=False) if isinstance(spec, str | os.PathLike) else parse_pipeline(spec, opens_tables=False)
    data = "".join(json.dumps(row, default=_as_json) + "\n" for row in rows).encode()
    names = [engines] if isinstance(engines, str) else list(engines)
    cuts = [batches] if isinstance(batches, str | int) else list(batches)
    sizes = dict.fromkeys([None, *map(_batch_rows, cuts)])
    first: Outcome | None = None
    for engine in names:
        for size in sizes:
            made = attempt(pipeline, data, size, engine, final, now.timestamp() if now else None, commit_rows)
            printed = b"".join(bytes(piece) for piece in result_lines(made.rows, pipeline, made.instants))
            refused = [Quarantined(row.line - 1, row.reason, row.detail, rows[row.line - 1]) for row in made.refused]
            found = Outcome([json.loads(line) for line in printed.split(b"\n") if line], refused)
            first = first or found
            differences = _differences(first.rows, found.rows)
            if [(row.index, row.reason) for row in first.quarantined] != [(row.index, row.reason) for row in found.quarantined]:
                differences.append(f"quarantined: {first.quarantined} became {found.quarantined}")
            if differences:
                cut = "in one batch" if size is None else f"in batches of {size}"
                raise AssertionError("\n".join([f"engine {engine}, {cut}, differs from engine {names[0]} in one batch:", *differences]))
    if first is None:
        raise ValueError("engines: name at least one")
    return first


def _batch_rows(cut: str | int) -> int | None:
    if isinstance(cut, int):
        return cut
    if cut not in ("whole", "each"):
        raise ValueError(f"batches: got {cut!r}; expected 'whole', 'each' or a number of rows")
    return None if cut == "whole" else 1


def _as_json(value: Any) -> str:
    if isinstance(value, datetime.date):
        return value.isoformat()
    raise TypeError(f"a row holds {value!r}; give values that JSON has, dates or datetimes")


def _differences(expected: Sequence[Row], got: Sequence[Row]) -> list[str]:
    """A line for each row that is not as expected."""
    from windowmill.windowing.algebra import close

    def apart(row: Row, other: Row) -> list[str]:
        return [name for name, value in row.items() if name not in other or not close(value, other[name])]

    def distance(row: Row, other: Row) -> int:
        return len(apart(row, other))

    named = list(dict.fromkeys(name for row in expected for name in row))
    left = list(got)
    unmatched = []
    for row in expected:
        match = next((other for other in left if not apart(row, other)), None)
        if match is None:
            unmatched.append(row)
        else:
            left.remove(match)
    differences = []
    for row in unmatched:
        nearest = min(left, key=partial(distance, row), default=None)
        if nearest is None or len(apart(row, nearest)) == len(row):
            differences.append(f"  missing: {dict(row)}")
            continue
        left.remove(nearest)
        wrong = apart(row, nearest)
        what = "; ".join(f"{name}: expected {row[name]!r}, got {nearest.get(name, '(no such column)')!r}" for name in wrong)
        differences.append(f"  { ({name: value for name, value in row.items() if name not in wrong}) }: {what}")
    differences += [f"  unexpected: { ({name: row[name] for name in named or row if name in row}) }" for row in left]
    return differences


@pytest.fixture(name="try_pipeline")
def _try_pipeline(request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """``try_pipeline`` with relative paths of specs beginning at the test's folder."""

    def beside_the_test(spec: Spec, rows: Sequence[Row], **options: Any) -> Outcome:
        return try_pipeline(request.path.parent / spec if isinstance(spec, str | Path) else spec, rows, **options)

    return beside_the_test


def check_aggregate(
    use: Any,
    rows: SearchStrategy[tuple[Any, ...]] | Sequence[tuple[Any, ...]],
    plain: Callable[[Sequence[tuple[Any, ...]]], Any] | None = None,
    *,
    examples: int = 200,
    max_rows: int = 5,
) -> None:
    """Search for rows over which an aggregate of your own breaks a law. Needs hypothesis.

    Parameters
    ----------
    use
        ``"module:name"`` as a spec has it, or the object or class itself; or the algebra of an aggregate that a plugin registers
        (:class:`windowmill.plugins.Aggregate`).
    rows
        Tuples with a value for each argument: some to choose from, or a hypothesis strategy such as ``st.tuples(st.integers())``.
    plain
        The result of a list of rows, computed as plainly as possible; rows with a null argument are among them, and do not count.
    examples, max_rows
        How many lists of how many rows at most.

    Raises
    ------
    windowmill.windowing.laws.LawError
        Naming the law that fails (its ``law``), with the smallest rows found that break it (its ``operands``).
    SpecError
        If there is no such object, or it lacks a function.

    Examples
    --------
    >>> class Newest:
    ...     commutative = True  # which it is not
    ...
    ...     def lift(self, price):
    ...         return price
    ...
    ...     def combine(self, older, newer):
    ...         return newer
    ...
    ...     def lower(self, price):
    ...         return price
    >>> try:
    ...     check_aggregate(Newest, [(1,), (2,)])
    ... except AssertionError as error:
    ...     print(error)  # doctest: +ELLIPSIS
    aggregate 'Newest' breaks the law of commutativity: combine(a, b) gives 2, but combine(b, a) ...
    """
    from windowmill.windowing.aggregates import adapt_own, load_own
    from windowmill.windowing.algebra import Aggregate
    from windowmill.windowing.laws import verify

    if isinstance(use, Aggregate):
        aggregate = use
    else:
        aggregate = load_own(use) if isinstance(use, str) else adapt_own(use, getattr(use, "__name__", type(use).__name__))
    verify(aggregate, rows, plain, examples=examples, max_rows=max_rows)
