"""Validates result rows before they are published: a pipeline's suite, the gate, Data Docs and the quality history."""

if __name__ != "windowmill.expectations":
    raise ImportError("import windowmill.expectations; the folder expectations/ of a checkout is no package by itself")
