"""Rules: expectations over the rows of a batch, and limits on the share of rows that a batch quarantined.

Result rows do not contain that share, so Great Expectations cannot check it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Protocol

from windowmill.windowing.axis import Duration
from windowmill.windowing.spec import FRESHNESS

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline


Origin = Literal["spec", "always"]
Severity = Literal["critical", "warning", "info"]
#: Type of the rule that the quarantined share of a batch's rows, from 0 to 1, is at most ``max_value``.
QUARANTINED_RATE = "expect_quarantined_rate_to_be_below"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One expectation over the rows of a batch."""

    #: Position in the suite; for a rule of the spec, also its position under ``expectations``.
    index: int
    #: ``spec``, or ``always`` for rules that every pipeline has.
    origin: Origin
    #: Its snake_case name in Great Expectations.
    type: str
    #: Columns that it checks, separated by commas; ``None`` for rules about the whole batch.
    column: str | None
    #: Arguments by their names in Great Expectations, including columns.
    arguments: Mapping[str, Any]
    #: ``critical`` holds the batch, ``warning`` flags it, ``info`` is recorded.
    severity: Severity


@dataclass(frozen=True)
class Loss:
    """The rows that a batch quarantined, for a message."""

    #: Number of rows by reason.
    reasons: Mapping[str, int]
    #: What to do about each reason, with the words of the spec.
    remedies: tuple[str, ...] = ()
    #: A few of the rows: key, time and reason.
    examples: tuple[Mapping[str, Any], ...] = ()

    def describe(self) -> str:
        """Counts and remedies in one line, without values of the rows.

        >>> Loss({"too_late": 4_000, "null_time": 2}, ("time.disorder: 1 hour would keep all",)).describe()
        '4,000 too_late, 2 null_time; time.disorder: 1 hour would keep all'
        """
        counts = sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        return "; ".join([", ".join(f"{count:,} {reason}" for reason, count in counts), *self.remedies])


def rate_problems(written: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Errors in the arguments of a rate rule, as pairs (field, message)."""
    for name in written:
        if name != "max_value":
            yield name, f"unknown argument of {QUARANTINED_RATE}; its only argument is max_value"
    value = written.get("max_value")
    if value is None:
        yield "max_value", f"missing; {QUARANTINED_RATE} requires it"
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        yield "max_value", f"got {value!r}; expected a share from 0 to 1, such as 0.01 for 1 %"


#: Type of the rule that a batch reads from ``min_share`` to ``max_share`` times the rows that earlier batches read.
VOLUME = "expect_volume_to_be_near_past_batches"
#: Type of the rule that all but ``max_missing`` keys of the last ``batches`` have rows in this one.
KEYS = "expect_keys_of_past_batches_to_be_present"
#: Types of rules that compare the batch with earlier ones, or with the time of its run.
OF_PAST = (VOLUME, KEYS, FRESHNESS)
_ARGUMENTS = {
    VOLUME: ("batches", "ago", "min_share", "max_share"),
    KEYS: ("batches", "max_missing", "window"),
    FRESHNESS: ("freshness",),
}
#: Greatest number of missing keys named.
_MAX_NAMED = 1_000


class Past(Protocol):
    """The batches before the one that is validated. Only runs count: backfills and restatements read other amounts of rows."""

    def volumes(self, batches: int) -> Sequence[int]:
        """Numbers of rows that the last ``batches`` runs read; fewer if there are fewer."""

    def volumes_ago(self, ago_us: int) -> Sequence[int]:
        """Numbers of rows of the runs for the time ``ago_us`` before that of this batch, give or take half an hour."""

    def keys(self, batches: int, window: str | None) -> tuple[int, Sequence[Mapping[str, Any]]]:
        """Number of keys with rows in the last ``batches`` runs, and those of them without a row in this batch.

        With ``window`` only rows of this window count. Both are nothing if this batch has no row.
        """

    def age_us(self) -> int | None:
        """How old the newest event through this batch was when the batch was planned; none if there is no event."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What the comparison has found; the attributes are those of a rule's result."""

    kept: bool
    message: str
    observed: float | None = None
    elements: int | None = None
    unexpected: int | None = None
    examples: tuple[Mapping[str, Any], ...] = ()


def describe(rule: Rule) -> str:
    """The rule in words, for pages that know only the types of Great Expectations."""
    given = rule.arguments
    if rule.type == QUARANTINED_RATE:
        return f"At most {given.get('max_value', 0):.2%} of the rows read may be quarantined."
    if rule.type == FRESHNESS:
        return f"The newest event is at most {given['freshness']} old."
    if rule.type == KEYS:
        return f"All but {given.get('max_missing', 0)} keys of the last {given['batches']} runs have a row."
    before = f"runs of {given['ago']} ago" if "ago" in given else f"last {given['batches']} runs"
    most = f" to {given['max_share']:g}" if "max_share" in given else " or more"
    return f"The rows read are {given.get('min_share', 0):g}{most} times those of the {before}."


def compare(rule: Rule, past: Past, rows_read: int) -> Compared:
    """Whether a batch that read so many rows keeps the ``rule``; true if there is nothing to compare it with."""
    if rule.type == FRESHNESS:
        return compare_age(rule.arguments["freshness"], past.age_us())
    return _volume(rule.arguments, past, rows_read) if rule.type == VOLUME else _keys(rule.arguments, past)


def compare_age(limit: str, age_us: int | None) -> Compared:
    """Whether a newest event of this age keeps the ``limit``, a duration; true if there is no event."""
    if age_us is None:
        return Compared(True, "no event yet")
    seconds = round(age_us / 1e6, 3)
    if age_us <= Duration.parse(limit).elapsed():
        return Compared(True, "passed", seconds)
    return Compared(False, f"the newest event is {timedelta(seconds=round(seconds))} old; expected at most {limit}", seconds)


def _volume(given: Mapping[str, Any], past: Past, rows_read: int) -> Compared:
    volumes = past.volumes_ago(Duration.parse(given["ago"]).elapsed()) if "ago" in given else past.volumes(given["batches"])
    usual = statistics.median(volumes) if volumes else 0.0
    if not usual:
        return Compared(True, "no earlier run with rows to compare with")
    share, least, most = rows_read / usual, given.get("min_share", 0), given.get("max_share")
    if least <= share and (most is None or share <= most):
        return Compared(True, "passed", round(share, 6))
    runs = "run" if len(volumes) == 1 else f"{len(volumes)} runs"
    which = f"the {runs} of {given['ago']} ago" if "ago" in given else f"the last {runs}"
    wanted = f"at least {least:g}" if most is None else f"{least:g} to {most:g}"
    message = f"{rows_read:,} rows read, {share:.3g} times the {usual:,.0f} of {which}; expected {wanted}"
    return Compared(False, message, round(share, 6))


def _keys(given: Mapping[str, Any], past: Past) -> Compared:
    known, missing = past.keys(given["batches"], given.get("window"))
    kept = len(missing) <= given.get("max_missing", 0)
    message = f"{len(missing):,} of {known:,} keys of the last {given['batches']} run{'' if given['batches'] == 1 else 's'} have no row"
    return Compared(kept, "passed" if kept else message, None, known, len(missing), tuple(missing[:_MAX_NAMED]))


def past_problems(rule_type: str, written: Mapping[str, Any], pipeline: Pipeline) -> Iterable[tuple[str, str]]:
    """Problems of the arguments of a rule of ``rule_type``, as pairs (argument, problem and remedy)."""
    own = _ARGUMENTS[rule_type]
    for name in written:
        if name not in own:
            yield name, f"unknown argument of {rule_type}; its own are {', '.join(own)}"
    yield from _count_problems(written, "batches", 1)
    yield from _count_problems(written, "max_missing", 0)
    if rule_type == FRESHNESS:
        yield from _freshness_problems(written, pipeline)
        return
    if rule_type == VOLUME:
        yield from _volume_problems(written)
        return
    if "batches" not in written:
        yield "batches", f"missing; {KEYS} needs the number of earlier runs whose keys are expected"
    if not pipeline.keys:
        yield "type", f"got {KEYS!r}, but the pipeline has no keys; remove the rule"
    names = [window.name for window in pipeline.windows]
    if (window := written.get("window")) is not None and window not in names:
        yield "window", f"got {window!r}; expected one of {', '.join(names)}"


def _freshness_problems(written: Mapping[str, Any], pipeline: Pipeline) -> Iterable[tuple[str, str]]:
    if not _is_length(written.get("freshness")):
        yield "freshness", f"got {written.get('freshness')!r}; expected a duration such as '2 hours'"
    elif pipeline.time.integer_axis:
        yield "freshness", f"got {written['freshness']!r}, but times are numbers ({pipeline.time.unit}), which have no age; remove the rule"


def _volume_problems(written: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if ("batches" in written) == ("ago" in written):
        yield "batches", f"{VOLUME} needs either batches (the median of so many runs) or ago (the runs at that time before); give one"
    if "ago" in written and not _is_length(written["ago"]):
        yield "ago", f"got {written['ago']!r}; expected a duration such as '7 days'"
    least, most = written.get("min_share"), written.get("max_share")
    if least is None and most is None:
        yield "min_share", f"missing, and so is max_share; {VOLUME} needs one of them"
    for name, share in (("min_share", least), ("max_share", most)):
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < float("inf")):
            yield name, f"got {share!r}; expected a number such as 0.5 for half of the usual volume"
            return
    if least is not None and most is not None and least > most:
        yield "min_share", f"got {least!r}, which is greater than {most!r}; nothing lies between them"


def _count_problems(written: Mapping[str, Any], name: str, least: int) -> Iterable[tuple[str, str]]:
    value = written.get(name, least)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        yield name, f"got {value!r}; expected a number from {least} on"


def _is_length(value: object) -> bool:
    try:
        return isinstance(value, str) and Duration.parse(value).elapsed() > 0
    except ValueError:
        return False


def plain(value: Any) -> Any:
    """Convert a value to its JSON form; instants are in UTC.

    >>> plain([Decimal("1.50"), float("nan"), None])
    ['1.50', 'nan', None]
    """
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in value]
    if isinstance(value, date):  # datetimes are dates, and so is pandas' NaT
        whole = value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value
        return None if str(value) == "NaT" else whole.isoformat()
    if isinstance(value, Decimal | bytes):
        return str(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has neither NaN nor infinities
    return None if value is None or str(value) == "<NA>" else str(value)
