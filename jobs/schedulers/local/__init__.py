"""The local scheduler: small batches in this process, over the state table or a state in memory."""
