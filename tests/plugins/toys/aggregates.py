"""Three aggregates: one over an atom that windowmill has, one of Python objects, and one that is windowmill's own by another name."""

from __future__ import annotations

import math
import statistics

from windowmill.plugins import Aggregate, AggregateSpec, Declaration, Field, Option, register_aggregate


def plain_variation(values):
    mean = statistics.fmean(values)
    return None if len(values) < 2 or mean == 0.0 else statistics.stdev(values) / mean


def plain_asymmetry(values):
    deviations = [value - statistics.fmean(values) for value in values]
    m2 = statistics.fmean(deviation**2 for deviation in deviations)
    return statistics.fmean(deviation**3 for deviation in deviations) / m2**1.5 if m2 else None


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
        recipe="windowmill.windowing.kernels.recipes:SKEWNESS",
        plain=plain_asymmetry,
        takes="number",
    )
)
