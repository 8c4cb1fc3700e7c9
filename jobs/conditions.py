"""Spark SQL conditions without Spark: translated to DuckDB's dialect and evaluated in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from windowing.errors import SpecError
from windowing.spec import Pipeline, Policy, Sliding, Tumbling

if TYPE_CHECKING:
    from sqlglot import exp


def conditions_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Every condition in the spec but the source's filter, each once."""
    found = [aggregate.where for aggregate in pipeline.aggregates.values()]
    found += [policy.punctuation for policy in policies_of(pipeline)]
    return tuple(dict.fromkeys(text for text in found if text))


def policies_of(pipeline: Pipeline) -> list[Policy]:
    """Every eviction and trigger policy in the spec."""
    policies = [window.evict for window in pipeline.windows if isinstance(window, Tumbling | Sliding)]
    policies += [window.trigger for window in pipeline.windows if isinstance(window, Sliding)]
    return [policy for policy in policies if policy]


def columns_of(condition: str) -> set[str]:
    """Names of the columns that ``condition`` reads."""
    from sqlglot import exp

    return {column.name for column in _parse(condition).find_all(exp.Column)}


def holds(conditions: Sequence[str], rows: pa.Table) -> dict[str, pa.BooleanArray]:
    """For each condition whether it is true of each row; null is not true.

    Raises
    ------
    SpecError
        If a condition is no Spark SQL, or cannot be evaluated over these columns.
    """
    if not conditions or not rows.num_rows:
        return {condition: pa.array([], pa.bool_()) for condition in conditions}
    import duckdb

    found = {}
    # The text comes from a spec, so it must not read files or settings of this machine.
    with duckdb.connect(config={"enable_external_access": "false", "threads": "1"}) as connection:
        connection.register("batch", rows)
        for condition in conditions:
            query = f"SELECT coalesce(CAST(({_parse(condition).sql('duckdb')}) AS BOOLEAN), false) AS holds FROM batch"
            try:
                found[condition] = connection.sql(query).to_arrow_table().column("holds").combine_chunks()
            except duckdb.Error as err:
                raise SpecError(f"condition {condition!r}: {str(err).splitlines()[0]}; correct it in the spec") from err
    return found


def _parse(condition: str) -> exp.Expr:
    import sqlglot

    try:
        return sqlglot.parse_one(condition, read="spark")
    except sqlglot.errors.ParseError as err:
        raise SpecError(f"condition {condition!r}: not a Spark SQL condition ({str(err).splitlines()[0]}); correct it in the spec") from err
