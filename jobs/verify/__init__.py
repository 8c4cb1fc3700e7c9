"""Verification of published rows: a sample is recomputed from the source as it is now, by Spark's plain operators, and compared."""
