"""Aggregates as Spark SQL, each with how closely results must agree; none of it is shared with the engines.

Their SQL is over the columns of the source, ``_time``, ``_until``, ``_file`` and ``_row``, and the window's bounds ``_begin`` and ``_end``.
The variable of a lambda hides a column of its name: it is ``_seen``, a name that no source may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa

from windowmill.checkpoints.quoting import backquoted
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.spec import Pipeline

#: By how much a quantile of more than 4,096 different values may fall short of the exact one (docs/semantics.md, "Aggregates").
QUANTILE_BOUND = 0.008
#: Five times the standard error of an approximate count (docs/numerics.md).
DISTINCT_BOUND = 5 * 0.016
#: Digits of Spark's decimals.
_DIGITS = 38
_NAN, _INFINITY = "double('NaN')", "double('Infinity')"


@dataclass(frozen=True, slots=True)
class SqlForm:
    """An aggregate in SQL."""

    sql: str  #: The aggregate expression.
    #: SQL of the size of the values that cancel one another out in the result, to which the tolerance is relative; null: the result's own.
    scale: str | None = None
    bound: float = 0.0  #: Documented relative error of a sketch, in addition to the tolerance; 0 for all others.
    joined: bool = False  #: Whether the SQL gives values whose texts, one after the other, are the result.


@dataclass(frozen=True, slots=True)
class Terms:
    """What the form of one aggregate is written with."""

    values: tuple[str, ...]  #: Its argument columns in SQL.
    tests: tuple[str, ...]  #: What its ``where`` asks, in SQL: one test, or none.
    order: str  #: Fields by which rows are ordered: event time, ties, arrival.
    options: Mapping[str, object]  #: The aggregate's further arguments.

    @property
    def v(self) -> str:
        return self.values[0]

    @property
    def w(self) -> str:
        return self.values[1]

    def where(self, *tests: str) -> str:
        """The clause after an aggregate function by which it takes only rows on which all ``tests`` and those of the aggregate hold."""
        every = (*self.tests, *tests)
        return f" FILTER (WHERE {' AND '.join(every)})" if every else ""

    @property
    def full(self) -> str:
        """As :meth:`where`: only rows on which no argument is null."""
        return self.where(*(f"{value} IS NOT NULL" for value in self.values))

    def rows(self, clause: str, *names: str) -> str:
        """The rows as an array of structs in their order; the fields ``names`` are the arguments."""
        fields = ", ".join(f"{value} AS {name}" for name, value in zip(names, self.values, strict=True))
        return f"array_sort(collect_list(struct({self.order}, {fields})){clause})"

    def listed(self) -> str:
        """The values as an array, in no order."""
        return f"collect_list({self.v}){self.full}"


def form_of(spec: AggregateSpec, pipeline: Pipeline, types: Mapping[str, pa.DataType], holds: str | None) -> SqlForm | None:
    """``spec`` in SQL; null if it has no such form. ``holds`` is the SQL of its ``where``."""
    build = FORMS.get(spec.function) if spec.use is None else None
    if build is None:
        return None
    if spec.function == "concat":
        kind = types[spec.columns[0]]
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            build = _concat_of_values  # whose text in Spark is not that which `concat` takes
    numeric = spec.function not in _AS_THEY_ARE
    values = tuple(_number(name, types[name]) if numeric else backquoted(name) for name in spec.columns)
    ties = [f"{backquoted(name)} AS _tie{n}" for n, name in enumerate(pipeline.time.tie_break)]
    order = ", ".join(["_time", *ties, "_file", "_row"])
    return build(Terms(values, () if holds is None else (f"({holds})",), order, spec.options))


def _number(name: str, kind: pa.DataType) -> str:
    """A column of numbers as the engines take it: instants are microseconds since 1970, booleans 0 and 1, whole numbers of 64 bits."""
    if pa.types.is_timestamp(kind):
        return f"unix_micros({backquoted(name)})"
    return f"CAST({backquoted(name)} AS BIGINT)" if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else backquoted(name)


def _double(value: str) -> str:
    return f"CAST({value} AS DOUBLE)"


def _count(t: Terms) -> SqlForm:
    return SqlForm(f"count(1){t.full}")


def _sum(t: Terms) -> SqlForm:
    return SqlForm(f"sum({t.v}){t.full}", f"sum(abs({_double(t.v)})){t.full}")


def _mean(t: Terms) -> SqlForm:
    return SqlForm(f"avg({_double(t.v)}){t.full}", f"max(abs({_double(t.v)})){t.full}")


def _geometric_mean(t: Terms) -> SqlForm:
    v = _double(t.v)
    zero, infinite = f"bool_or({v} = 0){t.full}", f"bool_or({v} = {_INFINITY}){t.full}"
    wrong = f"bool_or({v} < 0 OR isnan({v})){t.full}"
    return SqlForm(f"CASE WHEN {wrong} OR ({zero} AND {infinite}) THEN {_NAN} WHEN {zero} THEN 0D ELSE exp(avg(ln({v})){t.full}) END")


def _product(t: Terms) -> SqlForm:
    listed = f"collect_list({_double(t.v)}){t.full}"
    return SqlForm(f"CASE WHEN count(1){t.full} > 0 THEN aggregate({listed}, 1D, (a, x) -> a * x) END")


def _weighted_mean(t: Terms) -> SqlForm:
    v, w = _double(t.v), _double(t.w)
    return SqlForm(f"sum({v} * {w}){t.full} / nullif(sum({w}){t.full}, 0D)", f"max(abs({v})){t.full}")


def _time_weighted_mean(t: Terms) -> SqlForm:
    weight = "CAST(least(greatest(_until, _time + 1), _end) - greatest(_time, _begin) AS DOUBLE)"
    return _weighted_mean(Terms((t.v, weight), t.tests, t.order, t.options))


def _extreme_count(least: bool) -> Callable[[Terms], SqlForm]:
    def build(t: Terms) -> SqlForm:
        listed, pick = t.listed(), "array_min" if least else "array_max"
        return SqlForm(f"nullif(size(filter({listed}, _seen -> _seen = {pick}({listed}))), 0)")

    return build


def _arg(least: bool) -> Callable[[Terms], SqlForm]:
    def build(t: Terms) -> SqlForm:
        # Rows whose value is null count; of rows with equal `by` the first counts.
        rows = t.rows(t.where(f"{t.v} IS NOT NULL"), "by", "value")
        best = f"{'array_min' if least else 'array_max'}(transform({rows}, _seen -> _seen.by))"
        return SqlForm(f"try_element_at(filter({rows}, _seen -> _seen.by = {best}), 1).value")

    return build


def _extreme_list(greatest: bool) -> Callable[[Terms], SqlForm]:
    def build(t: Terms) -> SqlForm:
        ordered = f"array_sort({t.listed()})"
        ordered = f"reverse({ordered})" if greatest else ordered
        return SqlForm(f"CASE WHEN count(1){t.full} > 0 THEN slice({ordered}, 1, {t.options['k']}) END")

    return build


def _in_order(values: str) -> Callable[[Terms], SqlForm]:
    """An aggregate of the values in the order of their rows; ``values`` is an expression over their array `$`."""

    def build(t: Terms) -> SqlForm:
        listed = f"transform({t.rows(t.full, 'value')}, _seen -> _seen.value)"
        return SqlForm(f"CASE WHEN count(1){t.full} > 0 THEN {values.replace('$', listed)} END")

    return build


def _concat(t: Terms) -> SqlForm:
    texts = f"transform({t.rows(t.full, 'value')}, _seen -> CAST(_seen.value AS STRING))"
    return SqlForm(f"CASE WHEN count(1){t.full} > 0 THEN array_join({texts}, '') END")


def _concat_of_values(t: Terms) -> SqlForm:
    return SqlForm(_in_order("$")(t).sql, joined=True)


def joined(values: Iterable[object]) -> str:
    """The texts of ``values``, one after the other, as `concat` gives them."""
    return "".join(f"{value:f}" if isinstance(value, Decimal) else str(value) for value in values)


def _spread(function: str) -> Callable[[Terms], SqlForm]:
    return lambda t: SqlForm(f"{function}({_double(t.v)}){t.full}")


def _shape(function: str) -> Callable[[Terms], SqlForm]:
    """Numbers without a unit: an error is relative to 1, at least."""
    return lambda t: SqlForm(f"{function}({_double(t.v)}){t.full}", "1D")


def _covar(t: Terms) -> SqlForm:
    x, y = _double(t.v), _double(t.w)
    return SqlForm(f"covar_samp({x}, {y}){t.full}", f"stddev_pop({x}){t.full} * stddev_pop({y}){t.full}")


def _corr(t: Terms) -> SqlForm:
    x, y = _double(t.v), _double(t.w)
    # Not `corr`, which divides by zero where a column is constant.
    return SqlForm(f"covar_pop({x}, {y}){t.full} / nullif(stddev_pop({x}){t.full} * stddev_pop({y}){t.full}, 0D)", "1D")


def _trend(t: Terms) -> SqlForm:
    x, y = _double(t.v), _double(t.w)
    slope, intercept = (f"{name}({y}, {x}){t.full}" for name in ("regr_slope", "regr_intercept"))
    fitted = f"named_struct('slope', {slope}, 'intercept', {intercept})"
    scale = f"greatest(max(abs({y})){t.full}, stddev_pop({y}){t.full} / nullif(stddev_pop({x}){t.full}, 0D) * max(abs({x})){t.full})"
    return SqlForm(f"CASE WHEN {slope} IS NOT NULL THEN {fitted} END", scale)


def _quantile(t: Terms) -> SqlForm:
    sql = f"percentile_disc({t.options['q']}) WITHIN GROUP (ORDER BY {_double(t.v)}){t.full}"
    return SqlForm(sql, bound=0.0 if t.options.get("exact") else QUANTILE_BOUND)


def _exact(edge: object) -> str:
    """A number as the spec writes it: whole numbers and decimals are compared with it exactly."""
    text = f"{Decimal(str(edge)):f}"
    return f"{text}BD" if sum(map(str.isdigit, text)) <= _DIGITS else f"{edge}D"


def _histogram(t: Terms) -> SqlForm:
    edges = t.options["edges"]
    assert isinstance(edges, list)
    last, v = len(edges) - 2, t.v
    bins = [f"{v} >= {low} AND {v} {'<=' if n == last else '<'} {high}" for n, (low, high) in enumerate(pairwise(map(_exact, edges)))]
    counts = ", ".join(f"count(1){t.where(within)}" for within in bins)
    return SqlForm(f"CASE WHEN count(1){t.full} > 0 THEN array({counts}) END")


#: Aggregates that take values of any type as they are.
_AS_THEY_ARE = (
    *("count", "count_distinct", "approx_distinct", "concat", "min", "max", "first", "last", "min_count", "max_count", "collect"),
    *("collect_distinct", "bool_and", "bool_or", "arg_min", "arg_max", "top_k", "bottom_k"),
)
FORMS: Mapping[str, Callable[[Terms], SqlForm]] = {
    "count": _count,
    "count_distinct": lambda t: SqlForm(f"count(DISTINCT {t.v}){t.full}"),
    "approx_distinct": lambda t: SqlForm(f"count(DISTINCT {t.v}){t.full}", bound=DISTINCT_BOUND),
    "sum": _sum,
    "mean": _mean,
    "geometric_mean": _geometric_mean,
    "product": _product,
    "weighted_mean": _weighted_mean,
    "time_weighted_mean": _time_weighted_mean,
    "min": lambda t: SqlForm(f"min({t.v}){t.full}"),
    "max": lambda t: SqlForm(f"max({t.v}){t.full}"),
    "min_count": _extreme_count(least=True),
    "max_count": _extreme_count(least=False),
    "range": lambda t: SqlForm(f"max({t.v}){t.full} - min({t.v}){t.full}", f"max(abs({_double(t.v)})){t.full}"),
    "arg_min": _arg(least=True),
    "arg_max": _arg(least=False),
    "top_k": _extreme_list(greatest=True),
    "bottom_k": _extreme_list(greatest=False),
    **{name: _spread(name) for name in ("var_samp", "var_pop", "stddev_samp", "stddev_pop")},
    **{name: _shape(name) for name in ("skewness", "kurtosis")},
    "covar_samp": _covar,
    "corr": _corr,
    "linear_trend": _trend,
    "first": _in_order("try_element_at($, 1)"),
    "last": _in_order("try_element_at($, -1)"),
    "collect": _in_order("$"),
    "collect_distinct": _in_order("array_distinct($)"),
    "concat": _concat,
    "median": lambda t: SqlForm(f"median({_double(t.v)}){t.full}"),
    "quantile": _quantile,
    "histogram": _histogram,
    "bool_and": lambda t: SqlForm(f"bool_and({t.v}){t.full}"),
    "bool_or": lambda t: SqlForm(f"bool_or({t.v}){t.full}"),
}
