"""Compute the parts of a batch: ``local`` in this process, ``spark`` by tasks of Spark; ``files`` is how these tasks read plain files."""
