"""Reads pages of a pipeline's Data Docs."""

from __future__ import annotations

import pyarrow as pa

from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import remote_store_of, use_options_of
from windowmill.expectations.docs import Folder, pages_of_batches
from windowmill.windowing.spec import Pipeline


def docs_page(pipeline: Pipeline, name: str) -> str | None:
    """The HTML of the page ``name``; none if no page of the folder has that name."""
    use_options_of(pipeline)
    folder = _folder(Places.of(pipeline))
    return folder.read(name) if name.endswith(".html") and name in folder.names() else None


def docs_pages(places: Places) -> dict[int, str]:
    """The name of the newest page of each batch; empty if the folder cannot be read, for the report does without it."""
    try:
        return pages_of_batches(_folder(places))
    except (OSError, pa.ArrowException):
        return {}


def _folder(places: Places) -> Folder:
    return Folder(places.docs, remote_store_of(places.docs))
