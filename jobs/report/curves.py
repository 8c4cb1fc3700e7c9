"""Results over time, read for charts: which aggregates and keys to draw, and at most a few hundred points a line.

The table is never loaded: DataFusion scans it and answers with the extremes of each stretch of time, which are real rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from jobs.report.charts import Point
from jobs.report.tables import clipped, identifier, literal, query
from windowing.durations import DAY_US, Duration
from windowing.spec import Cumulative, Hopping, Pipeline, Tumbling

WINDOWS_SHOWN, AGGREGATES_SHOWN, FACETS_SHOWN, SERIES_SHOWN = 6, 3, 4, 6
#: Points of the whole page, about 11 bytes each: what keeps it far below 3 MB.
_POINTS = 120_000
_POINTS_A_LINE = (40, 500)
#: More keys than this are counted approximately.
_KEYS_COUNTED = 100_000
#: The near view shows this many steps of a window, or four of its lengths if that is longer.
_NEAR_STEPS, _NEAR_SIZES = 96, 4
#: A line is interrupted where this many steps of a window in a row have no row.
_GAP_STEPS = 4
#: Most telling first; functions not named here are drawn only for want of these. ``arg_*`` gives a name or a number, not a course.
_TELLING = (
    ("mean", "weighted_mean", "time_weighted_mean", "geometric_mean"),
    ("count",),
    ("quantile", "max"),
    ("sum", "count_distinct", "approx_distinct"),
    ("stddev_samp", "stddev_pop", "min", "range", "var_samp", "var_pop"),
)
_NOT_A_COURSE = ("arg_min", "arg_max", "max_count", "min_count")
_NUMERIC = {"byte", "short", "integer", "long", "float", "double"}

Key = tuple[str | None, ...]
#: Text of a key value as SQL makes it -> points in ascending time.
Lines = dict[Key, list[Point]]


@dataclass(frozen=True, slots=True)
class View:
    """One stretch of time: lines by aggregate and key."""

    title: str
    start: int
    end: int
    gap: float
    lines: dict[str, Lines]


@dataclass(frozen=True, slots=True)
class WindowCurves:
    """What is drawn of one window.

    Attributes
    ----------
    rows, keys
        Of the whole window, drawn or not; more keys than 100,000 are counted to within a few percent.
    facets
        Values of the first key, a panel each; one empty key if there are fewer than two key columns.
    series
        The rest of the key, a colour each.
    step
        Distance of window ends on their grid; None where they follow the data.
    latest
        The newest row of each key drawn: key, window end, values of the aggregates drawn.
    """

    name: str
    about: str
    rows: int
    keys: int
    keys_drawn: int
    facets: list[Key]
    series: list[Key]
    step: int | None
    views: list[View]
    overlapping: bool
    latest: list[tuple[Key, int, list[float | None]]]


@dataclass(frozen=True, slots=True)
class Curves:
    """The windows drawn, the aggregates drawn, and those left out."""

    windows: list[WindowCurves]
    aggregates: list[str]
    aggregates_left_out: list[str]
    windows_left_out: list[str]


def key_text(key: Key) -> str:
    """A key in words; ``null`` stands for a null value."""
    return clipped(" · ".join("null" if part is None else part for part in key), 60)


def drawable_aggregates(pipeline: Pipeline, table: DeltaTable) -> tuple[list[str], list[str]]:
    """Aggregates to draw, most telling first, and those left out: not numeric, or beyond the limit."""
    numeric = {
        field.name for field in table.schema().fields if isinstance(field.type, PrimitiveType) and (field.type.type in _NUMERIC or field.type.type.startswith("decimal"))
    }
    candidates = [name for name, aggregate in pipeline.aggregates.items() if name in numeric and aggregate.function not in _NOT_A_COURSE]
    chosen: list[str] = []
    for family in (*_TELLING, None):
        if len(chosen) < AGGREGATES_SHOWN:
            # One of each family before a second of any: a mean, a count and a maximum tell more than three means.
            found = (name for name in candidates if name not in chosen and (family is None or pipeline.aggregates[name].function in family))
            chosen += list(found)[: 1 if family else AGGREGATES_SHOWN - len(chosen)]
    return chosen, [name for name in pipeline.aggregates if name not in chosen]


def read_curves(pipeline: Pipeline, table: DeltaTable) -> Curves:
    """Lines for each window of ``pipeline`` that the sink ``table`` has rows of."""
    drawn, left_out = drawable_aggregates(pipeline, table)
    ranked = _ranked_keys(pipeline, table)
    names = [window.name for window in pipeline.windows if window.name in ranked]
    shown = names[:WINDOWS_SHOWN] if drawn else []
    picked = _pick(ranked[name].keys for name in shown)
    lines = 2 * len(drawn) * len(shown) * len(picked.keys)
    points = min(max(_POINTS // max(lines, 1), _POINTS_A_LINE[0]), _POINTS_A_LINE[1])
    windows = [_read_window(pipeline, table, name, ranked[name], picked, drawn, points) for name in shown]
    return Curves(windows, drawn, left_out, names[WINDOWS_SHOWN:])


@dataclass(frozen=True, slots=True)
class _Ranked:
    rows: int
    keys_count: int
    low: int
    high: int
    keys: list[tuple[Key, int]]


def _text_of(column: str) -> str:
    return f"CAST({identifier(column)} AS VARCHAR)"


def _ranked_keys(pipeline: Pipeline, table: DeltaTable, limit: int = 200) -> dict[str, _Ranked]:
    """Rows and extent of each window, and its ``limit`` keys with most rows."""
    names = [f"k{i}" for i in range(len(pipeline.keys))]
    keys = "".join(f", {_text_of(key)} AS {name}" for key, name in zip(pipeline.keys, names, strict=True))
    rows = f"SELECT \"window\" AS w, arrow_cast(window_end, 'Int64') AS e{keys} FROM t"
    whole = f"concat_ws(chr(31), {', '.join(names)})" if names else "''"
    extents = query(table, f"SELECT w, count(*) AS n, min(e) AS low, max(e) AS high, approx_distinct({whole}) AS keys FROM ({rows}) GROUP BY w").to_pylist()
    found = {row["w"]: _Ranked(row["n"], row["keys"], row["low"], row["high"], []) for row in extents}
    many = max((ranked.keys_count for ranked in found.values()), default=0) > _KEYS_COUNTED
    if many:
        # Counting each of very many keys takes memory for each. Keys with many rows fall into bins with many rows, so only the
        # fullest bins are looked into.
        rows = f"SELECT *, substr(md5({whole}), 1, 3) AS bin FROM ({rows})"
        bins = query(table, f"SELECT bin FROM ({rows}) GROUP BY bin ORDER BY count(*) DESC, bin LIMIT 40").column("bin").to_pylist()
        rows = f"SELECT * FROM ({rows}) WHERE bin IN ({', '.join(literal(bin_) for bin_ in bins)})"
    by_key = ", ".join(["w", *names])
    ranks = f"SELECT *, row_number() OVER (PARTITION BY w ORDER BY n DESC, {by_key}) AS place, count(*) OVER (PARTITION BY w) AS keys"
    counted = f"{ranks} FROM (SELECT {by_key}, count(*) AS n FROM ({rows}) GROUP BY {by_key})"
    for row in query(table, f"SELECT * FROM ({counted}) WHERE place <= {limit} ORDER BY w, place").to_pylist():
        ranked = found[row["w"]]
        ranked.keys.append((tuple(row[name] for name in names), row["n"]))
        if not many:
            found[row["w"]] = replace(ranked, keys_count=row["keys"])
    return found


@dataclass(frozen=True, slots=True)
class _Picked:
    facets: list[Key]
    series: list[Key]
    keys: list[Key]


def _pick(ranked: Iterable[list[tuple[Key, int]]]) -> _Picked:
    """The keys with most rows over all windows, a facet for each value of the first of several key columns.

    One choice for all windows, in the order of the names: a colour means the same key wherever it is seen.
    """
    rows: Counter[Key] = Counter()
    for keys in ranked:
        rows.update(dict(keys))
    split = 1 if any(len(key) > 1 for key in rows) else 0
    facets = _with_most_rows(rows, slice(None, split), FACETS_SHOWN)
    kept = Counter({key: n for key, n in rows.items() if key[:split] in facets})
    series = _with_most_rows(kept, slice(split, None), SERIES_SHOWN)
    keys = [key for key in kept if key[split:] in series]
    return _Picked([facet for facet in facets if any(key[:split] == facet for key in keys)], series, keys)


def _with_most_rows(rows: Counter[Key], part: slice, limit: int) -> list[Key]:
    """The ``limit`` values of one part of the key that have most rows, by name."""
    by_part: Counter[Key] = Counter()
    for key, n in rows.items():
        by_part[key[part]] += n
    return sorted((value for value, _ in by_part.most_common(limit)), key=lambda value: [part or "" for part in value])


def _read_window(
    pipeline: Pipeline,
    table: DeltaTable,
    name: str,
    ranked: _Ranked,
    picked: _Picked,
    drawn: list[str],
    points: int,
) -> WindowCurves:
    about, size, step = _grid(pipeline, name)
    span = ranked.high - ranked.low
    pace = step or max(span * ranked.keys_count // max(ranked.rows, 1), 1)
    rows = _rows_of(pipeline, name, picked.keys, drawn)
    near = max(_NEAR_STEPS * pace, _NEAR_SIZES * (size or 0))
    stretches = [("All", ranked.low)]
    if near < 0.6 * span:
        stretches.insert(0, (f"Latest {_length(near, pipeline)}", ranked.high - near))
    views = []
    for title, start in stretches:
        bucket = max(ranked.high - start, 1) / (points // 2)
        gap = max(_GAP_STEPS * step, 2.5 * bucket) if step else float("inf")
        views.append(View(title, start, ranked.high, gap, _read_lines(table, rows, drawn, len(pipeline.keys), start, ranked.high, points // 2)))
    return WindowCurves(
        name, about, ranked.rows, ranked.keys_count, sum(key in picked.keys for key, _ in ranked.keys), picked.facets, picked.series, step, views,
        overlapping=bool(size and step and step < size), latest=_latest(table, rows, drawn, len(pipeline.keys)),
    )  # fmt: skip


def _grid(pipeline: Pipeline, name: str) -> tuple[str, int | None, int | None]:
    """A window in words, its length and the distance of its ends, both None where they follow the data."""
    window = next(window for window in pipeline.windows if window.name == name)
    match window:
        case Tumbling(size=Duration() as size):
            return f"every {size}", _ticks(size), _ticks(size)
        case Hopping():
            return f"{window.size} every {window.hop}", _ticks(window.size), _ticks(window.hop)
        case Cumulative():
            return f"up to {window.size} in steps of {window.step}", _ticks(window.size), _ticks(window.step)
    return f"{window.type} windows", None, None


def _ticks(length: Duration) -> int:
    """Length along the axis; a month counts as the mean one, which is near enough to place lines."""
    return length.ticks + length.days * DAY_US + round(length.months * 30.436875 * DAY_US)


def _length(ticks: int, pipeline: Pipeline) -> str:
    if pipeline.time.unit is not None:
        return f"{ticks:,}"
    for unit, name in ((DAY_US, "days"), (DAY_US // 24, "hours"), (DAY_US // 1440, "minutes")):
        if ticks >= 3 * unit:
            return f"{ticks / unit:.0f} {name}"
    return f"{ticks / 1e6:.3g} seconds"


def _rows_of(pipeline: Pipeline, name: str, keys: Iterable[Key], drawn: list[str]) -> str:
    """SQL of the rows to draw: k0…, e (window end), v0… (finite values); each window's newest revision only."""
    columns = "".join(f", {_text_of(key)} AS k{i}" for i, key in enumerate(pipeline.keys))
    # Comparison is by total order, in which NaN is greater than any number: this drops NaN and both infinities.
    values = "".join(f", CASE WHEN {v} BETWEEN -1e300 AND 1e300 THEN {v} END AS v{i}" for i, v in enumerate(f"CAST({identifier(d)} AS DOUBLE)" for d in drawn))
    wanted = " OR ".join(
        "(" + (" AND ".join(f"({_text_of(column)} IS NOT DISTINCT FROM {literal(part)})" for column, part in zip(pipeline.keys, key, strict=True)) or "true") + ")"
        for key in keys
    )
    rows = f"SELECT arrow_cast(window_end, 'Int64') AS e, revision AS r, \"trigger\" AS g{columns}{values} FROM t WHERE \"window\" = {literal(name)} AND ({wanted})"
    if pipeline.emit == "final":
        return rows
    names = "".join(f", k{i}" for i in range(len(pipeline.keys)))
    newest = "".join(f", last_value(v{i} ORDER BY r) AS v{i}" for i in range(len(drawn)))
    return f"SELECT e, g{names}{newest} FROM ({rows}) GROUP BY e, g{names}"


def _read_lines(table: DeltaTable, rows: str, drawn: list[str], key_columns: int, start: int, end: int, buckets: int) -> dict[str, Lines]:
    names = "".join(f"k{i}, " for i in range(key_columns))
    extremes = ", ".join(
        f"min(v{i}) AS low{i}, max(v{i}) AS high{i}, first_value(e ORDER BY v{i} ASC NULLS LAST, e) AS low_at{i}, "
        f"first_value(e ORDER BY v{i} DESC NULLS LAST, e) AS high_at{i}"
        for i in range(len(drawn))
    )
    bucket = f"floor(CAST(e - ({start}) AS DOUBLE) * {buckets} / {float(max(end - start, 1) + 1)})"
    # Least and greatest row of each stretch, at their own times: a line drawn through them covers what a line through all rows covers.
    answer = query(table, f"SELECT {names}{bucket} AS bucket, {extremes} FROM ({rows}) WHERE e >= {start} GROUP BY {names}bucket ORDER BY {names}bucket")
    columns = {name: answer.column(name).to_pylist() for name in answer.column_names}
    keys = list(zip(*(columns[f"k{i}"] for i in range(key_columns)), strict=True)) if key_columns else [()] * answer.num_rows
    found: dict[str, Lines] = {}
    for i, aggregate in enumerate(drawn):
        lines: Lines = defaultdict(list)
        for key, low, low_at, high, high_at in zip(keys, *(columns[f"{name}{i}"] for name in ("low", "low_at", "high", "high_at")), strict=True):
            if low is not None:
                lines[key] += sorted({(low_at, low), (high_at, high)})
        found[aggregate] = dict(lines)
    return found


def _latest(table: DeltaTable, rows: str, drawn: list[str], key_columns: int) -> list[tuple[Key, int, list[float | None]]]:
    names = ", ".join(f"k{i}" for i in range(key_columns))
    newest = ", ".join(f"last_value(v{i} ORDER BY e, g) AS v{i}" for i in range(len(drawn)))
    grouped = f" GROUP BY {names} ORDER BY {names}" if names else ""
    answer = query(table, f"SELECT {names}{', ' if names else ''}max(e) AS e, {newest} FROM ({rows}){grouped}").to_pylist()
    return [(tuple(row[f"k{i}"] for i in range(key_columns)), row["e"], [row[f"v{i}"] for i in range(len(drawn))]) for row in answer]
