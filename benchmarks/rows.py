"""Whether two ways gave the same rows: counts and extremes exactly, floats to 1e-9."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

RELATIVE = 1e-9
#: Sums of squares lose half of the digits where values lie close together; the bound is a share of the greatest value.
TEXTBOOK = 1e-6


@dataclass(frozen=True)
class Agreement:
    """Two sets of rows compared.

    Attributes
    ----------
    missing
        Rows that only one of the two has.
    wrong
        Rows of both with a different count or extreme, or a float beyond the bound.
    worst
        Greatest relative difference of a float.
    """

    rows: int
    missing: int
    wrong: int
    worst: float

    @property
    def same(self) -> bool:
        return not self.missing and not self.wrong and self.rows > 0

    def describe(self) -> str:
        return f"{self.rows:,} rows, {self.missing:,} of one side only, {self.wrong:,} different; floats differ by at most {self.worst:.1g}"


def compare(
    expected: Path, actual: Path, *, key: Sequence[str], exact: Sequence[str], floats: Sequence[str], textbook: bool = False
) -> Agreement:
    """Compare the Parquet rows at ``actual`` with those at ``expected``, which agree in the columns ``key``, unique in each."""
    equal = [f"(e.{name} IS NOT DISTINCT FROM a.{name})" for name in exact]
    bound = f"{TEXTBOOK} * greatest(abs(e.top), abs(a.top), 1)" if textbook else f"{RELATIVE} * greatest(abs(e.{{0}}), abs(a.{{0}}))"
    near = [f"coalesce(abs(e.{name} - a.{name}) <= {bound.format(name)}, e.{name} IS NULL AND a.{name} IS NULL)" for name in floats]
    apart = [f"coalesce(abs(e.{name} - a.{name}) / nullif(greatest(abs(e.{name}), abs(a.{name})), 0), 0)" for name in floats]
    with duckdb.connect(config={"threads": 2}) as connection:
        found = connection.execute(
            f"""SELECT count(*), count_if(e.{key[0]} IS NULL OR a.{key[0]} IS NULL),
                count_if(e.{key[0]} IS NOT NULL AND a.{key[0]} IS NOT NULL AND NOT ({" AND ".join([*equal, *near])})),
                coalesce(max(greatest({", ".join(["0.0", *apart])})), 0)
            FROM {_rows(connection, expected)} e FULL JOIN {_rows(connection, actual)} a USING ({", ".join(key)})"""
        ).fetchone()
    assert found is not None
    return Agreement(*found)


def _rows(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """The rows at ``path``, a file or a folder, with window ends in microseconds, as SQL."""
    files = f"read_parquet('{path}')" if path.is_file() else f"read_parquet('{path}/part-*')"
    instants = [name for name, kind, *_ in connection.execute(f"DESCRIBE SELECT * FROM {files}").fetchall() if "TIMESTAMP" in kind]
    return (
        f"(SELECT * REPLACE ({', '.join(f'epoch_us({name}) AS {name}' for name in instants)}) FROM {files})"
        if instants
        else f"(FROM {files})"
    )
