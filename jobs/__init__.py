"""Spark and the command line: reading sources, running batches and backfills, writing the sink."""
