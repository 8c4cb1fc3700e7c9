"""Evaluates Spark SQL conditions without Spark: translates them to DuckDB's dialect, and runs DuckDB in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.errors import SpecError, UnsupportedError, first_line
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from sqlglot import exp

    from windowmill.jobs.conditions.sql.terms import Dialect, Term


def conditions_of(pipeline: Pipeline) -> tuple[str, ...]:
    """The distinct conditions in the spec, without the source's filter."""
    return pipeline.conditions()


def columns_of(condition: str) -> set[str]:
    """Names of the columns that ``condition`` reads."""
    from sqlglot import exp

    return {column.name for column in _parse(condition).find_all(exp.Column)}


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition evaluated over n rows, each array of shape (n,): where it is true (not null), and where its evaluation failed."""

    holds: pa.BooleanArray
    failed: pa.BooleanArray


def evaluate(conditions: Sequence[str], rows: pa.Table) -> dict[str, Truth]:
    """Evaluate each condition over ``rows`` as Spark would.

    Raises
    ------
    SpecError
        If a condition is not Spark SQL, or cannot be evaluated over these columns.
    UnsupportedError
        If it is outside the subset that DuckDB evaluates alike.
    """
    empty = pa.array([], pa.bool_())
    if not conditions or not rows.num_rows:
        return dict.fromkeys(conditions, Truth(empty, empty))
    import duckdb

    truths = {}
    # The text comes from a spec, so it must not read files or settings of this machine.
    with duckdb.connect(config={"enable_external_access": "false", "threads": "1"}) as connection:
        connection.register("batch", rows)
        for condition in conditions:
            term, plain = translated(condition, dict(zip(rows.schema.names, rows.schema.types, strict=True)), "duckdb")
            odd = " OR ".join(f"NOT regexp_full_match({text}, '[\\x20-\\x7E]*')" for text in plain) or "FALSE"
            query = (
                f"SELECT coalesce({term.value}, FALSE) AS holds, coalesce({term.failed or 'FALSE'}, FALSE) AS failed, "
                f"coalesce({odd}, FALSE) AS odd FROM batch"
            )
            try:
                table = connection.sql(query).to_arrow_table()
            except duckdb.Error as err:
                raise SpecError(f"condition {condition!r}: {str(err).splitlines()[0]}; correct it in the spec") from err
            holds, failed, odd_rows = (table.column(name).combine_chunks() for name in ("holds", "failed", "odd"))
            if pc.any(odd_rows).as_py():
                raise _unsupported(condition, "rlike, lower and upper of text beyond printable ASCII")
            truths[condition] = Truth(holds, failed)
    return truths


def translated(condition: str, types: Mapping[str, pa.DataType], dialect: Dialect) -> tuple[Term, list[str]]:
    """Translate the condition over columns of ``types`` into one dialect.

    Returns the term, and SQL of the texts that must be printable ASCII for the dialects to agree.

    Raises
    ------
    SpecError
        If it is not Spark SQL.
    UnsupportedError
        If it is outside the common subset.
    """
    from windowmill.jobs.conditions.sql.terms import NotCommon
    from windowmill.jobs.conditions.sql.translation import Translation

    # sqlglot's Databricks dialect distinguishes cast from try_cast; its Spark dialect parses both as try_cast.
    translation, tree = Translation(dialect, types), _parse(condition, "databricks")
    try:
        return translation.condition(tree), translation.plain_texts
    except NotCommon as err:
        raise _unsupported(condition, str(err)) from err
    except ValueError as err:
        raise SpecError(f"condition {condition!r}: {err}; correct it in the spec") from err


def _unsupported(condition: str, what: str) -> UnsupportedError:
    return UnsupportedError(f"condition {condition!r}: {what} may mean something else here than in Spark; use --engine spark")


def _parse(condition: str, dialect: str = "spark") -> exp.Expr:
    import sqlglot

    try:
        return sqlglot.parse_one(condition, read=dialect)
    except (sqlglot.errors.SqlglotError, RecursionError) as err:
        raise SpecError(f"condition {condition!r}: not a Spark SQL condition ({first_line(err)}); correct it in the spec") from err
