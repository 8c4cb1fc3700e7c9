"""Reads pages of a pipeline's Data Docs, and writes a page to a path or URI."""

from __future__ import annotations

import pyarrow as pa

from windowmill.checkpoints.places import Places, local_path
from windowmill.checkpoints.stores import is_disk_full, remote_store_of, use_options_of
from windowmill.expectations.docs import Folder, pages_of_batches
from windowmill.jobs.report.queries import ReportError
from windowmill.windowing.errors import first_line
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


def write_page(target: str, html: str) -> None:
    """Write ``html`` to the path or URI ``target``; raises ``ReportError`` if that cannot be, and an earlier page stays as it is."""
    try:
        page_at = local_path(target)
        folder, name = (str(page_at.parent), page_at.name) if page_at else (target.rpartition("/")[0], target.rpartition("/")[2])
        Folder(folder, remote_store_of(folder)).write(name, html)
    except (OSError, pa.ArrowException) as err:
        advice = "free some space and run again" if is_disk_full(err) else "name a place that can be by --out"
        raise ReportError(f"report {target}: cannot be written ({first_line(err)}); {advice}") from err
