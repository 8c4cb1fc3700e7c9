"""Column names and texts as query languages write them, whatever characters they hold."""

from __future__ import annotations


def backquoted(name: str) -> str:
    """A column name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def quoted(name: str) -> str:
    """A column name in standard SQL, which DataFusion and DuckDB speak."""
    return '"' + name.replace('"', '""') + '"'


def sql_text(text: str) -> str:
    """A text constant in standard SQL."""
    return "'" + text.replace("'", "''") + "'"


def spark_text(text: str) -> str:
    """A text constant in Spark's SQL."""
    # Spark replaces ${…} by settings and by the environment, even within constants.
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{") + "'"
