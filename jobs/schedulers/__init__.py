"""Compute the parts of a batch: ``local`` in this process, ``tasks`` by tasks of Spark, over rows that Spark reads or ``file_rows``."""
