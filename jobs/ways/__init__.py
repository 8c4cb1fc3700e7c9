"""The ways to compute a batch, by partials of slices and sessions or by live rows, on Spark or in this process."""
