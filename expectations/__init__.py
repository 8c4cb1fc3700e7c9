"""Checks of the rows about to be published: the suite of a pipeline, the gate, Data Docs and the quality history."""
