"""A batch, from its plan to its commit: the steps, the loop around them, and what they write."""
