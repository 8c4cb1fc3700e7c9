"""The meaning of a pipeline: specs, time, slices, aggregates, engines. Pure and deterministic: no clock, no I/O, no Spark."""
