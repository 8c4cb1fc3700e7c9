"""Pipelines to run, read and copy from."""
