"""The ways to compute a batch, by partials of slices, sessions and positions and by live rows, on Spark or in this process."""
