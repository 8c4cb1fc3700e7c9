"""The ways to compute a batch, by slices or by live rows, on Spark or in this process."""
