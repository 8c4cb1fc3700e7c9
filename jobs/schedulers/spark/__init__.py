"""The Spark scheduler: batches of any size, by tasks after one shuffle."""
