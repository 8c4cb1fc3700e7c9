"""Translates conditions in the common subset of Spark SQL and DuckDB, and marks the rows on which Spark's ANSI mode would fail.

Both dialects get their SQL from this package, term by term, so that they agree on every row. A term has a value and a failure condition:
where the evaluation fails (a cast of a text that is not a number, a division by zero, an overflow), the value is null. A condition with a
node that has no rule is not translated: Spark evaluates it as written, and ``windowmill try`` refuses it.
"""
