"""Spark and the command line: reading sources, running batches and backfills, writing the sink."""

if __name__ != "windowmill.jobs":
    raise ImportError("the package is windowmill.jobs; at the top of a checkout stands its folder")
