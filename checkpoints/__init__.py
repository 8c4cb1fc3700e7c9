"""What is remembered between runs: the ledger of batches, and the state tables they restore and extend."""

if __name__ != "windowmill.checkpoints":
    raise ImportError("the package is windowmill.checkpoints; at the top of a checkout stands its folder")
