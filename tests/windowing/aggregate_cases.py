"""One entry for every aggregate and kind of argument: what tests of laws and engines run over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

from tests.strategies import rows, shared
from tests.windowing.kernel_algebra import made_of
from windowmill.windowing.algebra import Aggregate, Args
from windowmill.windowing.catalogue import parse_aggregate
from windowmill.windowing.errors import AggregateOverflowError
from windowmill.windowing.reference.aggregates import compute
from windowmill.windowing.reference.events import Event, EventWindow, Record


@dataclass(frozen=True)
class Case:
    """An aggregate as written in a spec, over columns of given types."""

    written: dict[str, Any]
    types: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join((next(iter(self.written)), *self.types))

    @cached_property
    def aggregate(self) -> Aggregate[Any]:
        return made_of(self.written, self.types)

    @property
    def rows(self) -> st.SearchStrategy[Args]:
        """Argument tuples as ``lift`` takes them."""
        if "time_weighted_mean" in self.written:
            return st.tuples(rows("float64").map(lambda row: row[0]), st.integers(1, 100))
        return rows(*self.types)

    def by_reference(self, arguments: Sequence[Args]) -> Any:
        """What the reference engine makes of rows in this order."""
        spec = parse_aggregate(self.written)
        if self.types == ("decimal",):
            arguments = [(None if value is None else value.quantize(Decimal("0.01")),) for (value,) in arguments]
        timed = spec.function == "time_weighted_mean"
        events = [
            Event(number, number, (), 0, row[1] if timed else 0, (number,), 0.0, 0.0, Record(dict(zip(spec.columns, row, strict=False))))
            for number, row in enumerate(arguments)
        ]
        try:
            return compute("tested", spec, EventWindow(0, 1000, events))
        except AggregateOverflowError:
            return "overflow"


def _cases() -> list[Case]:
    one = {
        "int64 float64 decimal": "sum mean",
        "int64 float64": "product geometric_mean range var_samp var_pop stddev_samp stddev_pop skewness kurtosis",
        "float64": "time_weighted_mean",
        "int64 float64 decimal string bool": "min max count count_distinct",
        "int64 float64 string": "min_count max_count first last collect collect_distinct approx_distinct",
        "int64 string bool": "concat",
        "bool": "bool_and bool_or",
    }
    cases = [Case({"count": "*"}, ())]
    cases += [Case({name: "x"}, (type_,)) for types, names in one.items() for name in names.split() for type_ in types.split()]
    cases += [Case({name: ["x", "y"]}, ("float64", "float64")) for name in ("covar_samp", "corr", "linear_trend", "weighted_mean")]
    cases += [Case({name: ["x", "y"]}, types) for name in ("arg_min", "arg_max") for types in (("float64", "string"), ("int64", "float64"))]
    cases += [Case({name: {"column": "x", "k": 2}}, (type_,)) for name in ("top_k", "bottom_k") for type_ in ("int64", "float64", "string")]
    cases += [Case({"quantile": {"column": "x", "q": q}}, (type_,)) for q in (0, 0.3, 1) for type_ in ("int64", "float64")]
    cases += [Case({"quantile": {"column": "x", "q": 0.3, "exact": True}}, (type_,)) for type_ in ("int64", "float64")]
    cases += [Case({"median": "x"}, (type_,)) for type_ in ("int64", "float64", "decimal")]
    cases += [Case({"histogram": {"column": "x", "edges": [-1, 0, 2.5, 100]}}, ("float64",))]
    return cases


#: Functions whose result for no values is 0 instead of null.
COUNTS = {"count", "count_distinct", "approx_distinct"}
CASES = _cases()
#: The cases share the profile's examples.
EXAMPLES = shared(len(CASES), 12)
