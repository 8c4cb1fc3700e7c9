"""Reads results over time for charts: chooses aggregates and keys, and thins each line to a few hundred points.

The table is never loaded whole: DataFusion scans it and returns the extremes of each stretch of time, which are actual rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from windowmill.checkpoints.quoting import quoted
from windowmill.jobs.report.charts import Point
from windowmill.jobs.report.tables import clipped, literal, query
from windowmill.windowing.durations import DAY_US, Duration
from windowmill.windowing.spec import Pipeline

_WINDOWS_SHOWN, _AGGREGATES_SHOWN = 6, 3
#: Limit on points of the whole page; at about 11 bytes each they keep it far below 3 MB.
_POINTS = 120_000
_POINTS_A_LINE = (40, 500)
#: The near view shows this many steps of a window, or four of its lengths if that is longer.
_NEAR_STEPS, _NEAR_SIZES = 96, 4
#: A line breaks where this many consecutive steps of a window have no row.
_GAP_STEPS = 4
#: Families of functions to draw, most informative first; other functions are drawn only if too few of these are present.
_FAMILIES = (
    ("mean", "weighted_mean", "time_weighted_mean", "geometric_mean"),
    ("count",),
    ("median", "quantile", "max"),
    ("sum", "count_distinct", "approx_distinct"),
    ("stddev_samp", "stddev_pop", "min", "range", "var_samp", "var_pop"),
)
#: Functions whose results do not form a curve.
_NOT_A_CURVE = ("arg_min", "arg_max", "max_count", "min_count")
_NUMERIC = {"byte", "short", "integer", "long", "float", "double"}
#: The values of the key columns, as text; None is null.
Key = tuple[str | None, ...]
#: Points by key, in ascending time.
Lines = dict[Key, list[Point]]
_FACETS_SHOWN, _SERIES_SHOWN = 4, 6
#: Above this number, keys are counted approximately.
_KEYS_COUNTED = 100_000


@dataclass(frozen=True, slots=True)
class TimeChart:
    """One stretch of time: lines by aggregate and key."""

    title: str
    start: int
    end: int
    gap: float
    lines: dict[str, Lines]


@dataclass(frozen=True, slots=True)
class WindowCurves:
    """The curves of one window.

    Attributes
    ----------
    rows, keys
        Numbers for the whole window, drawn or not; above 100,000 keys the count is approximate, to a few percent.
    facets
        Values of the first key column, one panel each; one empty key if there are fewer than two key columns.
    series
        Values of the other key columns, one colour each.
    step
        Distance between window ends on their grid; None if the data determine the ends.
    overlapping
        Whether neighbouring windows share events.
    latest
        Newest row of each drawn key, if it is in the near view: key, window end, values of the drawn aggregates.
    """

    name: str
    about: str
    rows: int
    keys: int
    keys_drawn: int
    facets: list[Key]
    series: list[Key]
    step: int | None
    overlapping: bool
    views: list[TimeChart]
    latest: list[tuple[Key, int, list[float | None]]]


@dataclass(frozen=True, slots=True)
class Curves:
    """The windows drawn, the aggregates drawn, and those left out."""

    windows: list[WindowCurves]
    aggregates: list[str]
    aggregates_left_out: list[str]
    windows_left_out: list[str]


def drawable_aggregates(pipeline: Pipeline, table: DeltaTable) -> tuple[list[str], list[str]]:
    """Choose the aggregates to draw, most informative first; returns them and the rest, which is not numeric or beyond the limit."""
    numeric = {
        field.name
        for field in table.schema().fields
        if isinstance(field.type, PrimitiveType) and (field.type.type in _NUMERIC or field.type.type.startswith("decimal"))
    }
    candidates = [name for name, aggregate in pipeline.aggregates.items() if name in numeric and aggregate.function not in _NOT_A_CURVE]
    chosen: list[str] = []
    for family in (*_FAMILIES, None):
        if len(chosen) < _AGGREGATES_SHOWN:
            # One of each family before a second of any: a mean, a count and a maximum are more informative than three means.
            fit = (name for name in candidates if name not in chosen and (family is None or pipeline.aggregates[name].function in family))
            chosen += list(fit)[: 1 if family else _AGGREGATES_SHOWN - len(chosen)]
    return chosen, [name for name in pipeline.aggregates if name not in chosen]


def read_curves(pipeline: Pipeline, table: DeltaTable) -> Curves:
    """Read the curves of each window of ``pipeline`` that has rows in the sink ``table``."""
    drawn, left_out = drawable_aggregates(pipeline, table)
    ranked = rank_keys(pipeline, table)
    names = [window.name for window in pipeline.windows if window.name in ranked]
    shown = names[:_WINDOWS_SHOWN] if drawn else []
    picked = pick(ranked[name].keys for name in shown)
    lines = 2 * len(drawn) * len(shown) * len(picked.keys)
    points = min(max(_POINTS // max(lines, 1), _POINTS_A_LINE[0]), _POINTS_A_LINE[1])
    windows = [_read_window(pipeline, ranked[name], picked, DrawnRows(table, pipeline, name, picked.keys, drawn), points) for name in shown]
    return Curves(windows, drawn, left_out, names[_WINDOWS_SHOWN:])


def _read_window(pipeline: Pipeline, ranked: KeyRanking, picked: KeyChoice, selection: DrawnRows, points: int) -> WindowCurves:
    about, size, step = _grid(pipeline, selection.window)
    span = ranked.high - ranked.low
    pace = step or max(span * ranked.keys_count // max(ranked.rows, 1), 1)
    near = max(_NEAR_STEPS * pace, _NEAR_SIZES * (size or 0))
    stretches = [("All", ranked.low)]
    if near < 0.6 * span:
        stretches.insert(0, (f"Latest {_length(near, pipeline)}", ranked.high - near))
    views = []
    for title, start in stretches:
        gap = max(_GAP_STEPS * step, 2.5 * (ranked.high - start) / (points // 2)) if step else float("inf")
        views.append(TimeChart(title, start, ranked.high, gap, selection.lines(start, ranked.high, points // 2)))
    return WindowCurves(
        name=selection.window,
        about=about,
        rows=ranked.rows,
        keys=ranked.keys_count,
        keys_drawn=sum(key in picked.keys for key, _ in ranked.keys),
        facets=picked.facets,
        series=picked.series,
        step=step,
        overlapping=bool(size and step and step < size),
        views=views,
        latest=selection.latest(stretches[0][1]),
    )


def _grid(pipeline: Pipeline, name: str) -> tuple[str, int | None, int | None]:
    """A window in words, its length and the distance between its ends; both are None if the data determine them."""
    window = next(window for window in pipeline.windows if window.name == name)
    spacing = window.spacing()
    return spacing.words, _ticks(spacing.size), _ticks(spacing.step)


def _ticks(length: Duration | None) -> int | None:
    """Length along the axis; a month counts as a mean month, which is exact enough for drawing."""
    return None if length is None else length.ticks + length.days * DAY_US + round(length.months * 30.436875 * DAY_US)


def _length(ticks: int, pipeline: Pipeline) -> str:
    if pipeline.time.unit is not None:
        return f"{ticks:,}"
    for unit, name in ((DAY_US, "days"), (DAY_US // 24, "hours"), (DAY_US // 1440, "minutes")):
        if ticks >= 3 * unit:
            return f"{ticks / unit:.0f} {name}"
    return f"{ticks / 1e6:.3g} seconds"


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Rows to draw: those of one window and some keys, with some aggregates.

    Its SQL names the columns k0… (key as text), e (window end as an integer), g (trigger), v0… (aggregates, finite or null).
    """

    table: DeltaTable
    pipeline: Pipeline
    window: str
    keys: Sequence[Key]
    aggregates: Sequence[str]

    @property
    def _key_names(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.pipeline.keys))]

    def _sql(self, start: int) -> str:
        keys = [f"{text_of(column)} AS {name}" for column, name in zip(self.pipeline.keys, self._key_names, strict=True)]
        values = [_finite(aggregate, f"v{i}") for i, aggregate in enumerate(self.aggregates)]
        columns = ", ".join(["arrow_cast(window_end, 'Int64') AS e", '"trigger" AS g', "revision AS r", *keys, *values])
        instant = str(start) if self.pipeline.time.unit else f"arrow_cast({start}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
        # Compare the stored type: then statistics exclude the files of earlier times.
        where = f'"window" = {literal(self.window)} AND window_end >= {instant} AND ({" OR ".join(map(self._is, self.keys))})'
        rows = f"SELECT {columns} FROM t WHERE {where}"
        if self.pipeline.emit == "final":
            return rows
        one = ", ".join(["e", "g", *self._key_names])
        newest = ", ".join(f"last_value(v{i} ORDER BY r) AS v{i}" for i in range(len(self.aggregates)))
        return f"SELECT {one}, {newest} FROM ({rows}) GROUP BY {one}"

    def _is(self, key: Key) -> str:
        parts = zip(self.pipeline.keys, key, strict=True)
        return "(" + (" AND ".join(f"({text_of(column)} IS NOT DISTINCT FROM {literal(part)})" for column, part in parts) or "true") + ")"

    def lines(self, start: int, end: int, buckets: int) -> dict[str, Lines]:
        """Points by aggregate and key from ``start`` to ``end``, at most two for each of ``buckets`` buckets. One scan.

        They are the least and the greatest row of each bucket, at their own times: the line through them spans the same area as a line
        through all rows.
        """
        extremes = [
            f"min(v{i}) AS low{i}, max(v{i}) AS high{i}, first_value(e ORDER BY v{i} ASC NULLS LAST, e) AS low_at{i}, "
            f"first_value(e ORDER BY v{i} DESC NULLS LAST, e) AS high_at{i}"
            for i in range(len(self.aggregates))
        ]
        bucket = f"floor(CAST(e - ({start}) AS DOUBLE) * {buckets} / {float(end - start + 1)}) AS bucket"
        columns = ", ".join([*self._key_names, bucket, *extremes])
        by = ", ".join([*self._key_names, "bucket"])
        answer = query(self.table, f"SELECT {columns} FROM ({self._sql(start)}) GROUP BY {by} ORDER BY {by}").to_pydict()
        keys = list(zip(*(answer[name] for name in self._key_names), strict=True)) or [()] * len(answer["bucket"])
        by_aggregate: dict[str, Lines] = {}
        for i, aggregate in enumerate(self.aggregates):
            lines: Lines = defaultdict(list)
            lows, highs = (zip(answer[f"{name}_at{i}"], answer[f"{name}{i}"], strict=True) for name in ("low", "high"))
            for key, low, high in zip(keys, lows, highs, strict=True):
                if low[1] is not None:
                    lines[key] += sorted({low, high})
            by_aggregate[aggregate] = dict(lines)
        return by_aggregate

    def latest(self, start: int) -> list[tuple[Key, int, list[float | None]]]:
        """Each key's newest row from ``start`` on: key, window end, values of the aggregates."""
        newest = [f"last_value(v{i} ORDER BY e, g) AS v{i}" for i in range(len(self.aggregates))]
        names = ", ".join(self._key_names)
        by = f" GROUP BY {names} ORDER BY {names}" if names else ""
        rows = query(
            self.table, f"SELECT {', '.join([*self._key_names, 'max(e) AS e', *newest])} FROM ({self._sql(start)}){by}"
        ).to_pylist()
        return [(tuple(row[name] for name in self._key_names), row["e"], [row[f"v{i}"] for i in range(len(newest))]) for row in rows]


def _finite(aggregate: str, name: str) -> str:
    value = f"CAST({quoted(aggregate)} AS DOUBLE)"
    # Comparisons use a total order in which NaN is greater than any number, so this excludes NaN and both infinities.
    return f"CASE WHEN {value} BETWEEN -1e300 AND 1e300 THEN {value} END AS {name}"


def key_text(key: Key) -> str:
    """A key as text of at most 60 characters; ``null`` stands for a null value.

    >>> key_text(("JFK", None))
    'JFK · null'
    """
    return clipped(" · ".join("null" if part is None else part for part in key), 60)


@dataclass(frozen=True, slots=True)
class KeyRanking:
    """Numbers of rows and keys of a window, its first and last window end, and its keys by descending number of rows."""

    rows: int
    keys_count: int
    low: int
    high: int
    keys: list[tuple[Key, int]]


def text_of(column: str) -> str:
    """The SQL expression for a key column as text."""
    return f"CAST({quoted(column)} AS VARCHAR)"


def rank_keys(pipeline: Pipeline, table: DeltaTable, limit: int = 200) -> dict[str, KeyRanking]:
    """Rank the keys of each window: its extent, and the ``limit`` keys with the most rows. Scans ``table`` two or three times."""
    names = [f"k{i}" for i in range(len(pipeline.keys))]
    keys = "".join(f", {text_of(key)} AS {name}" for key, name in zip(pipeline.keys, names, strict=True))
    rows = f"SELECT \"window\" AS w, arrow_cast(window_end, 'Int64') AS e{keys} FROM t"
    whole = f"concat_ws(chr(31), {', '.join(names)})" if names else "''"
    extents = query(
        table, f"SELECT w, count(*) AS n, min(e) AS low, max(e) AS high, approx_distinct({whole}) AS keys FROM ({rows}) GROUP BY w"
    ).to_pylist()
    windows = {row["w"]: KeyRanking(row["n"], row["keys"], row["low"], row["high"], []) for row in extents}
    many = max((ranked.keys_count for ranked in windows.values()), default=0) > _KEYS_COUNTED
    if many:
        # Exact counts take memory per key. Keys with many rows fall into bins with many rows, so only the fullest bins are counted.
        rows = f"SELECT *, substr(md5({whole}), 1, 3) AS bin FROM ({rows})"
        bins = query(table, f"SELECT bin FROM ({rows}) GROUP BY bin ORDER BY count(*) DESC, bin LIMIT 40").column("bin").to_pylist()
        rows = f"SELECT * FROM ({rows}) WHERE bin IN ({', '.join(literal(bin_) for bin_ in bins)})"
    by_key = ", ".join(["w", *names])
    ranks = f"SELECT *, row_number() OVER (PARTITION BY w ORDER BY n DESC, {by_key}) AS place, count(*) OVER (PARTITION BY w) AS keys"
    counted = f"{ranks} FROM (SELECT {by_key}, count(*) AS n FROM ({rows}) GROUP BY {by_key})"
    for row in query(table, f"SELECT * FROM ({counted}) WHERE place <= {limit} ORDER BY w, place").to_pylist():
        ranked = windows[row["w"]]
        ranked.keys.append((tuple(row[name] for name in names), row["n"]))
        if not many:
            windows[row["w"]] = replace(ranked, keys_count=row["keys"])
    return windows


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """Keys to draw: one panel per facet (a value of the first key column), one colour per series (values of the others)."""

    facets: list[Key]
    series: list[Key]
    keys: list[Key]


def pick(ranked: Iterable[list[tuple[Key, int]]]) -> KeyChoice:
    """Choose the keys with the most rows over all windows; each value of the first of several key columns is a facet.

    All windows share the choice, ordered by name, so that a colour means the same key in every chart.
    """
    rows: Counter[Key] = Counter()
    for counted in ranked:
        rows.update(dict(counted))
    split = 1 if any(len(key) > 1 for key in rows) else 0
    facets = _with_most_rows(rows, slice(None, split), _FACETS_SHOWN)
    kept = Counter({key: n for key, n in rows.items() if key[:split] in facets})
    series = _with_most_rows(kept, slice(split, None), _SERIES_SHOWN)
    keys = [key for key in kept if key[split:] in series]
    return KeyChoice([facet for facet in facets if any(key[:split] == facet for key in keys)], series, keys)


def _with_most_rows(rows: Counter[Key], part: slice, limit: int) -> list[Key]:
    """The ``limit`` values of one part of the key that have the most rows, ordered by name."""
    by_part: Counter[Key] = Counter()
    for key, n in rows.items():
        by_part[key[part]] += n
    return sorted((value for value, _ in by_part.most_common(limit)), key=lambda value: [part or "" for part in value])
