"""Conditions in Spark SQL: checked, and evaluated over Arrow tables, or by Spark where they are outside."""
