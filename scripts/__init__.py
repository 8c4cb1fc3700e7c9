"""Scripts of the project: set-up, and pages that are made from the code."""
