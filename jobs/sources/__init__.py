"""Sources: their kinds, the versions and files that a batch reads, and its rows in Spark."""
