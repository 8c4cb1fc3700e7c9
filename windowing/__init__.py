"""The meaning of a pipeline: specs, time, slices, aggregates, engines. Pure and deterministic: no clock, no I/O, no Spark."""

if __name__ != "windowmill.windowing":
    raise ImportError("import windowmill.windowing; the folder windowing/ of a checkout is no package by itself")
