"""Writes a page to a path or URI."""

from __future__ import annotations

import pyarrow as pa

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.stores import is_disk_full, remote_store_of
from windowmill.expectations.docs import Folder
from windowmill.jobs.report.queries import ReportError
from windowmill.windowing.errors import first_line


def write_page(target: str, html: str) -> None:
    """Write ``html`` to the path or URI ``target``; raises ``ReportError`` if that cannot be, and an earlier page stays as it is."""
    try:
        page_at = local_path(target)
        folder, name = (str(page_at.parent), page_at.name) if page_at else (target.rpartition("/")[0], target.rpartition("/")[2])
        Folder(folder, remote_store_of(folder)).write(name, html)
    except (OSError, pa.ArrowException) as err:
        advice = "free some space and run again" if is_disk_full(err) else "name a place that can be by --out"
        raise ReportError(f"report {target}: cannot be written ({first_line(err)}); {advice}") from err
