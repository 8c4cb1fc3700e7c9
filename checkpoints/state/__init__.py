"""The state table, opened, read, written, compacted and inspected; all other code reads and writes state only through these modules."""
