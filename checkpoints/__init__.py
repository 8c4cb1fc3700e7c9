"""What is remembered between runs: the ledger of batches, and the state tables they restore and extend."""

if __name__ != "windowmill.checkpoints":
    raise ImportError("import windowmill.checkpoints; the folder checkpoints/ of a checkout is no package by itself")
