"""The meaning of a pipeline: specs, time, slices, aggregates, engines. Pure and deterministic: no clock, no I/O, no Spark."""

if __name__ != "windowmill.windowing":
    raise ImportError("the package is windowmill.windowing; at the top of a checkout stands its folder")
