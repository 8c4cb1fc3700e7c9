"""Spark and the command line: reading sources, running batches and backfills, writing the sink."""

if __name__ != "windowmill.jobs":
    raise ImportError("import windowmill.jobs; the folder jobs/ of a checkout is no package by itself")
