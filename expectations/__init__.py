"""Checks of the rows about to be published: the suite of a pipeline, the gate, Data Docs and the quality history."""

if __name__ != "windowmill.expectations":
    raise ImportError("import windowmill.expectations; the folder expectations/ of a checkout is no package by itself")
