"""Who computes the parts of a batch: this process, or Spark's tasks, which read plain files themselves."""
