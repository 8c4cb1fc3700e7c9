"""Chooses the keys to draw: those with the most result rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from deltalake import DeltaTable

from windowmill.checkpoints.quoting import quoted
from windowmill.jobs.report.tables import clipped, literal, query
from windowmill.windowing.spec import Pipeline

_FACETS_SHOWN, _SERIES_SHOWN = 4, 6
#: Above this number, keys are counted approximately.
_KEYS_COUNTED = 100_000

#: The values of the key columns, as text; None is null.
Key = tuple[str | None, ...]


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
