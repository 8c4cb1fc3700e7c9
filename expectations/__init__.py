"""Checks of the rows about to be published: the suite of a pipeline, the gate, Data Docs and the quality history."""

if __name__ != "windowmill.expectations":
    raise ImportError("the package is windowmill.expectations; at the top of a checkout stands its folder")
