"""The spec that ``windowmill init`` proposes for a source, as YAML that runs as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from windowmill.checkpoints.places import absolute
from windowmill.jobs.commands.source_look import Look, MeasuredArrivals, Unit
from windowmill.jobs.layouts.limits import MAX_BYTES
from windowmill.windowing.paths import within

_SECOND, _MINUTE, _HOUR, _DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
#: Lengths of windows: name and length of one, and of a longer window that moves by it. The first of which the sample holds few is taken.
_SIZES = (
    ("by_second", _SECOND, "rolling_minute", _MINUTE),
    ("by_minute", _MINUTE, "rolling_hour", _HOUR),
    ("by_5_minutes", 5 * _MINUTE, "rolling_hour", _HOUR),
    ("hourly", _HOUR, "rolling_day", _DAY),
    ("daily", _DAY, "rolling_week", 7 * _DAY),
)
_WITHOUT_SAMPLE = _SIZES[3]
#: Windows of the shortest length that the sample holds, at most.
_MOST_WINDOWS = 400
#: Columns of numbers that get aggregates.
_MEASURES = 3
_UNITS = ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute"), (_SECOND, "second"), (1_000, "millisecond"), (1, "microsecond"))
#: Roundings of a measured disorder, upwards.
_ROUND = tuple(n * _SECOND for n in (1, 5, 30, 60, 300, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400))


@dataclass(frozen=True)
class Chosen:
    """What a person, flags or the look decided: the time column and the keys."""

    time: str
    keys: tuple[str, ...]
    sink: str | None = None
    pipeline: str | None = None


def proposed(look: Look, chosen: Chosen) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec as nested mappings, and a comment for some of its fields."""
    path, unit = look.settings.path, look.unit_of(chosen.time)
    name = chosen.pipeline or name_of(look.name)
    arrivals = look.arrivals(chosen.time)
    short, long = _windows(arrivals, unit)
    measures = look.measures([chosen.time, *chosen.keys])[:_MEASURES]
    tie_break = look.tie_break([chosen.time, *chosen.keys])
    time: dict[str, Any] = {"column": chosen.time} | ({} if unit is None else {"unit": unit})
    time |= {} if unit in (None, "none") else {"axis": "instants"}
    time |= {"tie_break": tie_break} if tie_break else {}
    disorder, why = _disorder(arrivals, unit)
    time |= {"disorder": disorder} if disorder else {}
    options = dict(look.settings.options)
    source = {"format": look.settings.format} | ({"path": path} if path else {}) | ({"options": options} if options else {})
    spec = {
        "pipeline": name,
        "source": source,
        "keys": list(chosen.keys),
        "time": time,
        "windows": [short, long],
        "aggregates": _aggregates(measures, [*chosen.keys]),
        "sink": {"path": chosen.sink or (_sink(path, name) if path else absolute(name))},
        "schedule": _schedule(arrivals, unit),
        "compute": "auto",
    }
    few = look.size_bytes <= MAX_BYTES
    repeated = look.repeated()
    comments = {
        "time": why,
        "windows": "size and hop; docs/semantics.md has every type: sessions, counts, policies",
        "keys": "one result row for each of these and each window" if chosen.keys else "none: one group of all rows",
        "sink": "the result table, which the first run makes",
        "schedule": "when Airflow runs it; `windowmill run` runs it at once",
        "compute": "small batches without Spark" if few else "the first batch goes to Spark, later small ones do without it",
    }
    if repeated is not None:
        name, share = repeated
        comments["aggregates"] = f"{share:.1%} of the rows repeat a value of {name}: they count as often as they come (docs/semantics.md)"
    return spec, comments


def name_of(text: str) -> str:
    """``text`` as a pipeline's name."""
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "events"
    return (plain if plain[0].isalpha() else f"p_{plain}")[:40] + "_windows"


def _sink(source: str, name: str) -> str:
    sink = f"{source.rstrip('/').rpartition('/')[0] or '.'}/{name}"
    return f"{sink}_results" if within(sink, source) else sink


def _windows(arrivals: MeasuredArrivals | None, unit: Unit | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tumbling window, and a longer one that moves by its size."""
    if unit == "none":
        span = 7 * _DAY if arrivals is None else max(1, arrivals.last - arrivals.first)
        size = max(1, 10 ** (len(str(span // 20)) - 1))
        lengths: tuple[Any, Any] = (size, 10 * size)
        names = ("steps", "rolling")
    else:
        short, size, long, length = _WITHOUT_SAMPLE if arrivals is None else _length(arrivals)
        lengths = shown(size), shown(length)
        names = (short, long)
    return (
        {"name": names[0], "type": "tumbling", "size": lengths[0]},
        {"name": names[1], "type": "hopping", "size": lengths[1], "hop": lengths[0]},
    )


def _schedule(arrivals: MeasuredArrivals | None, unit: Unit | None) -> str:
    """As often as windows of the shortest length end, at most every fifteen minutes."""
    if arrivals is None or unit == "none":
        return "@daily"
    length = _length(arrivals)[1]
    return "@daily" if length >= _DAY else "@hourly" if length >= _HOUR else "*/15 * * * *"


def _length(arrivals: MeasuredArrivals) -> tuple[str, int, str, int]:
    """The first of :data:`_SIZES` of which the sample holds few."""
    span_us = max(1, arrivals.last - arrivals.first) * arrivals.tick_us
    return next((each for each in _SIZES if span_us / each[1] <= _MOST_WINDOWS), _SIZES[-1])


def _disorder(arrivals: MeasuredArrivals | None, unit: Unit | None) -> tuple[Any, str]:
    """The disorder that a spec says, and why."""
    if arrivals is None:
        return None, "disorder: how far behind the latest event rows may come; the rows could not be looked at"
    if arrivals.commits < 2:
        return None, "disorder: nothing to measure in one commit; say here how far behind the latest event later rows may come"
    if not arrivals.late:
        return None, f"disorder: none needed, over {arrivals.commits} {arrivals.commit} no row came behind the latest event before it"
    tick = 1 if unit == "none" else arrivals.tick_us
    rounded = arrivals.disorder if unit == "none" else _rounded(arrivals.disorder * tick)
    if not rounded:
        late = _told(arrivals.late, tick, unit)
        return None, f"disorder: 0, as fewer than one row in a thousand is late, by up to {late}; those miss windows that have ended"
    measured = f"measured over {arrivals.commits} {arrivals.commit}"
    measured += f": all but one row in a thousand come within {_told(arrivals.disorder, tick, unit)}"
    return (rounded if unit == "none" else shown(rounded)), f"{measured}, the latest within {_told(arrivals.late, tick, unit)}"


def _rounded(length: int) -> int:
    if not length:
        return 0
    return next((each for each in _ROUND if length <= each), -(-length // _DAY) * _DAY)


def _told(ticks: int, tick: int, unit: Unit | None) -> str:
    return str(ticks) if unit == "none" else shown(ticks * tick)


def shown(length: int) -> str:
    """A length of time in the largest units that give it to a hundredth.

    >>> shown(5_400_000_000), shown(60_000_000), shown(1_234_567)
    ('1 hour 30 minutes', '1 minute', '1 second 234 milliseconds')
    """
    parts: list[str] = []
    left = length
    for size, name in _UNITS:
        if left >= size and len(parts) < 2:
            n, left = divmod(left, size)
            parts.append(f"{n} {name}{'' if n == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


def _aggregates(measures: Sequence[str], taken: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": {"count": "*"}}
    for column in measures:
        plain = re.sub(r"\W+", "_", column).strip("_") or "value"
        found |= {f"mean_{plain}": {"mean": column}, f"max_{plain}": {"max": column}}
    lower = {name.lower() for name in taken}
    return {f"{name}_of_window" if name.lower() in lower else name: aggregate for name, aggregate in found.items()}


def as_yaml(spec: dict[str, Any], comments: dict[str, str]) -> str:
    """``spec`` as YAML, a field or two a line, with its comments."""
    lines = []
    for name, value in spec.items():
        if name in comments:
            lines.append(f"# {comments[name]}")
        if name == "windows":
            lines += [f"{name}:", *(f"  - {_flow(item)}" for item in value)]
        elif name in ("aggregates", "source", "time"):
            lines += [f"{name}:", *(f"  {_flow({key: item})[1:-1]}" for key, item in value.items())]
        else:
            lines.append(_flow({name: value})[1:-1])
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()
