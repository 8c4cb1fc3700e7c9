"""Reads pages of a pipeline's Data Docs."""

from __future__ import annotations

from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import remote_store_of, use_options_of
from windowmill.expectations.docs import Folder
from windowmill.windowing.spec import Pipeline


def docs_page(pipeline: Pipeline, name: str) -> str | None:
    """The HTML of the page ``name``; none if no file of the folder has that name."""
    use_options_of(pipeline)
    place = Places.of(pipeline).docs
    folder = Folder(place, remote_store_of(place))
    return folder.read(name) if name in folder.names() else None
