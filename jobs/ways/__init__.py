"""The ways in which a batch is computed, by slices or by live rows, and the places where that is done: Spark, or this process."""
