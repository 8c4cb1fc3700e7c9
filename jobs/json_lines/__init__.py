"""Rows as JSON lines: read as columns, and written from columns."""
