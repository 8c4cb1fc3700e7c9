"""Evaluates Spark SQL conditions without Spark: translates them to DuckDB's dialect, and runs DuckDB in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.checks import parts_problem
from windowmill.windowing.errors import SpecError, UnsupportedError, first_line
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from sqlglot import exp

    from windowmill.jobs.conditions.terms import Dialect, Term


def conditions_of(pipeline: Pipeline) -> tuple[str, ...]:
    """The distinct conditions in the spec, without the source's filter."""
    return pipeline.conditions()


def columns_of(condition: str) -> set[str]:
    """Names of the columns that ``condition`` reads; of a field in a column that of the column."""
    from sqlglot import exp

    return {column.parts[0].name for column in _parse(condition).find_all(exp.Column) if not _is_parameter(column)}


def _is_parameter(column: exp.Column) -> bool:
    """Whether ``column`` is a parameter of a lambda in other case, which Spark ignores."""
    from sqlglot import exp

    name, lambda_ = column.parts[0].name.lower(), column.find_ancestor(exp.Lambda)
    while lambda_ is not None:
        if any(parameter.name.lower() == name for parameter in lambda_.expressions):
            return True
        lambda_ = lambda_.find_ancestor(exp.Lambda)
    return False


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition evaluated over n rows, each array of shape (n,): where it is true (not null), and where its evaluation failed."""

    holds: pa.BooleanArray
    failed: pa.BooleanArray


_OF_NO_ROWS = Truth(pa.array([], pa.bool_()), pa.array([], pa.bool_()))


@dataclass(frozen=True)
class Conditions:
    """Conditions over columns of given types, translated to DuckDB's SQL; small and picklable.

    Attributes
    ----------
    sql
        For each condition SQL of its value, of where it fails, and of where a text that must be printable ASCII is not. Without the terms,
        tasks that evaluate it need no parser.
    """

    sql: Mapping[str, tuple[str, str | None, str | None]]

    @classmethod
    def of(cls, conditions: Sequence[str], types: Mapping[str, pa.DataType]) -> Conditions:
        """Translate each of ``conditions``; raises as :func:`translated`."""
        sql: dict[str, tuple[str, str | None, str | None]] = {}
        for condition in conditions:
            term, plain = translated(condition, types, "duckdb")
            odd = " OR ".join(f"NOT regexp_full_match({text}, '[\\x20-\\x7E]*')" for text in plain)
            sql[condition] = (term.value, term.failed, odd or None)
        return cls(sql)

    @property
    def depend_on_texts(self) -> bool:
        """Whether some condition can be evaluated here only if all texts are printable ASCII."""
        return any(odd for _, _, odd in self.sql.values())

    def over(self, rows: pa.Table) -> dict[str, Truth]:
        """Evaluate each condition over ``rows``; raises as :func:`evaluate`."""
        if not self.sql or not rows.num_rows:
            return dict.fromkeys(self.sql, _OF_NO_ROWS)
        import duckdb

        # The text comes from a spec, so it must not read files or settings of this machine.
        with duckdb.connect(config={"enable_external_access": "false", "threads": "1"}) as connection:
            connection.register("batch", _without_zones(rows))
            return {condition: self._over_batch(connection, condition) for condition in self.sql}

    def _over_batch(self, connection: DuckDBPyConnection, condition: str) -> Truth:
        import duckdb

        value, failed, odd = (f"coalesce({sql or 'FALSE'}, FALSE)" for sql in self.sql[condition])
        query = f"SELECT {value} AS holds, {failed} AS failed, {odd} AS odd FROM batch"
        try:
            table = connection.sql(query).to_arrow_table()
        except duckdb.Error as err:
            raise SpecError(f"condition {condition!r}: {str(err).splitlines()[0]}; correct it in the spec") from err
        holds, failed, odd_rows = (table.column(name).combine_chunks() for name in ("holds", "failed", "odd"))
        if pc.any(odd_rows).as_py():
            raise _unsupported(condition, "rlike, lower and upper of text beyond printable ASCII")
        return Truth(holds, failed)


def _without_zones(rows: pa.Table) -> pa.Table:
    """``rows`` with instants as times in UTC: DuckDB would show them in the zone of this machine."""
    for number, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            rows = rows.set_column(number, field.name, rows.column(number).cast(pa.timestamp(field.type.unit)))
    return rows


def evaluate(conditions: Sequence[str], rows: pa.Table) -> dict[str, Truth]:
    """Evaluate each condition over ``rows`` as Spark would.

    Raises
    ------
    SpecError
        If a condition is not Spark SQL, or cannot be evaluated over these columns.
    UnsupportedError
        If it is outside the subset that DuckDB evaluates alike.
    """
    if not rows.num_rows:
        return dict.fromkeys(conditions, _OF_NO_ROWS)
    return Conditions.of(conditions, dict(zip(rows.schema.names, rows.schema.types, strict=True))).over(rows)


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
    from windowmill.jobs.conditions.rewrite import Rewrite
    from windowmill.jobs.conditions.terms import NotCommon

    # sqlglot's Databricks dialect distinguishes cast from try_cast; its Spark dialect parses both as try_cast.
    rewrite, tree = Rewrite(dialect, types), _parse(condition, "databricks")
    problem = _problem(condition)
    if problem is not None:
        raise UnsupportedError(f"condition {condition!r}: {problem} (here; use --engine spark to ask Spark)")
    try:
        return rewrite.condition(tree), rewrite.plain_texts
    except NotCommon as err:
        raise _unsupported(condition, str(err)) from err
    except ValueError as err:
        raise SpecError(f"condition {condition!r}: {err}; correct it in the spec") from err


@lru_cache(1_000)
def _problem(condition: str) -> str | None:
    return parts_problem(_parse(condition, "databricks"), condition)


def _unsupported(condition: str, what: str) -> UnsupportedError:
    return UnsupportedError(f"condition {condition!r}: {what} may mean something else here than in Spark; use --engine spark")


def _parse(condition: str, dialect: str = "spark") -> exp.Expr:
    import sqlglot

    try:
        return sqlglot.parse_one(condition, read=dialect)
    except (sqlglot.errors.SqlglotError, RecursionError) as err:
        raise SpecError(f"condition {condition!r}: not a Spark SQL condition ({first_line(err)}); correct it in the spec") from err
