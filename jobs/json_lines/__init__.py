"""Reads JSON lines as columns, and writes columns as JSON lines."""
