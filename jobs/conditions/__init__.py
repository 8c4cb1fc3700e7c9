"""Conditions in Spark SQL: checked, translated, and evaluated by Spark or by DuckDB."""
