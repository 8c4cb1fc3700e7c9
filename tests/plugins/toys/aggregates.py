"""Three aggregates: one over an atom that windowmill has, one of Python objects, and one that is windowmill's own by another name."""

from __future__ import annotations

import math
import statistics

from windowmill.plugins import Aggregate, AggregateSpec, Declaration, Field, Option, register_aggregate


def build_variation(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate:
    from windowmill.windowing.aggregates.spread import build_stddev_samp

    deviation = build_stddev_samp(spec, types)

    def lower(partial):
        spread, mean = deviation.lower(partial), partial[1] + partial[2]
        return None if spread is None or mean == 0.0 else spread / mean

    own = {name: getattr(deviation, name) for name in ("kind", "fields", "identity", "lift", "combine", "commutative", "exact")}
    return Aggregate(spec.function, lower=lower, **own)


def plain_variation(values):
    mean = statistics.fmean(values)
    return None if len(values) < 2 or mean == 0.0 else statistics.stdev(values) / mean


def build_highest_above(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate:
    limit = spec.options["limit"]
    return Aggregate(
        spec.function,
        kind=f"highest_above_{limit}",
        fields=(Field("value", "float64"),),
        identity=(-math.inf,),
        lift=lambda args, at: (float(args[0]),) if args[0] is not None and args[0] > limit else (-math.inf,),
        combine=lambda a, b: (max(a[0], b[0]),),
        lower=lambda partial: None if partial[0] == -math.inf else partial[0],
        commutative=True,
        idempotent=True,
    )


register_aggregate(
    Declaration(
        "coefficient_of_variation",
        algebra=build_variation,
        recipe="tests.plugins.toys.recipe:VARIATION",
        plain=plain_variation,
        takes="number",
    )
)
register_aggregate(
    Declaration(
        "highest_above",
        algebra=build_highest_above,
        form="{column: …, limit: a number}",
        options={"limit": Option(lambda value: isinstance(value, int | float), {"type": "number"})},
        takes="number",
    )
)
register_aggregate(
    Declaration(
        "asymmetry",
        algebra="windowmill.windowing.aggregates.spread:build_skewness",
        recipe="windowmill.windowing.kernels.recipes:SKEWNESS",
        takes="number",
    )
)
