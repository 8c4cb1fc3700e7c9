"""Timed comparisons; nothing here is a test."""
