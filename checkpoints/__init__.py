"""What is remembered between runs: the ledger of batches, and the state tables they restore and extend."""
