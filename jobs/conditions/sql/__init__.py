"""Conditions in the common subset of Spark SQL and DuckDB, translated with what Spark's ANSI mode would fail on told apart.

Both dialects get their SQL from here, term by term, so that they agree on every row: a term is its value, and whether it has failed
(a cast of a text that is no number, a division by zero, an overflow), which makes the value null. Whatever is not listed here is not
translated: Spark evaluates it as it stands, and ``windowmill try`` refuses it.
"""
