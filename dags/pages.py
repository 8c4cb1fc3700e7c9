"""The pages of pipelines in Airflow's user interface: overview, reports, Data Docs. They only read.

Airflow's log-in protects them: who may read a DAG may see the pages of its pipeline. A request names a pipeline, and never a file: the API
server looks it up among the specs of ``WINDOWMILL_PIPELINES``, which it needs to see like the workers, with credentials for the tables.
The report and the overview are rendered from the tables. Data Docs are files in the pipeline's folders, so a header forbids the
browser to run their scripts: whoever can write a table must not act in the name of a user of Airflow.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from html import escape
from urllib.parse import quote, urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from windowmill.dags.folders import mentions, spec_files
from windowmill.dags.specs import ParsedFile, pipeline_of
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.redaction import redacted
from windowmill.windowing.settings import PIPELINES

#: A page that has been made is shown again for so long: rendering takes processor time of the API server.
KEPT_SECONDS = 10.0
_NOTHING_RUNS = {"Content-Security-Policy": "sandbox allow-same-origin; default-src 'none'; style-src 'unsafe-inline'; img-src data:"}
_OWN_SCRIPTS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
}


class _Kept:
    """Pages by what they show, made one at a time and kept for ``KEPT_SECONDS``."""

    def __init__(self) -> None:
        self._making = threading.Lock()
        self._pages: dict[object, tuple[float, str]] = {}

    def page(self, shown: object, make: Callable[[], str]) -> str:
        with self._making:
            now = time.monotonic()
            self._pages = {one: (until, html) for one, (until, html) in self._pages.items() if until > now}
            if shown not in self._pages:
                self._pages[shown] = (time.monotonic() + KEPT_SECONDS, make())
            return self._pages[shown][1]


_kept = _Kept()


def _file_of(name: str) -> ParsedFile:
    """The spec of the pipeline ``name``; raises ``HTTPException``."""
    problems = []
    for path in (path for path in spec_files() if mentions(path, name)):
        try:
            spec = ParsedFile.of(path)
        except WindowmillError as err:
            problems.append(redacted(str(err)))
        else:
            if spec.pipeline.pipeline == name:
                return spec
    if problems:
        raise HTTPException(500, "; ".join(problems))
    raise HTTPException(
        404,
        f"{name} is no pipeline of the folders in WINDOWMILL_PIPELINES, as the API server sees them; without it they are pipelines/ next "
        "to dags_folder",
    )


def _report(spec: ParsedFile) -> str:
    from windowmill.jobs.report import report_page

    # A scheme other than that of files, so that the page has no links into the file system.
    return report_page(spec.pipeline, target="windowmill://report.html", spec=spec.path, docs="docs/index.html")


def _overview(permitted: frozenset[str]) -> str:
    from windowmill.jobs.report.page import overview_page, row_of, unreadable

    rows = []
    for path in spec_files():
        name = path.stem
        try:
            spec = ParsedFile.of(path)
            name = spec.pipeline.pipeline
            if name in permitted:
                row = row_of(spec.pipeline, str(path), "windowmill://overview.html")
                rows.append(replace(row, href=f"pipelines/{quote(name, safe='')}/report.html"))
        except WindowmillError as err:
            if name in permitted:
                rows.append(unreadable(name, str(path), redacted(str(err))))
    return overview_page(PIPELINES.given() or "pipelines/", rows)[1]


def overview(user: GetUserDep) -> Response:
    permitted = frozenset(get_auth_manager().get_authorized_dag_ids(user=user))
    return HTMLResponse(_kept.page(permitted, lambda: _overview(permitted)), headers=_OWN_SCRIPTS)


def report(dag_id: str) -> Response:
    """The report of a pipeline, named by any of its DAGs."""
    name = pipeline_of(dag_id)
    if name != dag_id:
        return RedirectResponse(f"../{quote(name, safe='')}/report.html")
    spec = _file_of(name)
    return HTMLResponse(_kept.page(name, lambda: _report(spec)), headers=_OWN_SCRIPTS)


def data_docs(dag_id: str, page: str) -> Response:
    from windowmill.jobs.report.page import docs_page

    html = docs_page(_file_of(dag_id).pipeline, page)
    if html is None:
        raise HTTPException(404, f"{dag_id} has no Data Docs page {page}; a batch writes one where the spec has expectations")
    return HTMLResponse(html, headers=_NOTHING_RUNS)


def _problem(request: Request, err: Exception) -> Response:
    """The page about an error; who has not logged in is sent there, and back afterwards."""
    status, detail = (err.status_code, str(err.detail)) if isinstance(err, HTTPException) else (500, redacted(str(err)))
    if status == 401:
        return RedirectResponse(f"{get_auth_manager().get_url_login()}?{urlencode({'next': str(request.url)})}")
    return HTMLResponse(f"<!doctype html><title>windowmill</title><p>{escape(detail)}", status, headers=_NOTHING_RUNS)


@functools.cache
def application() -> FastAPI:
    """The pages; routes are relative to :data:`windowmill.dags.links.PREFIX`."""
    app = FastAPI(title="windowmill", docs_url=None, redoc_url=None, openapi_url=None)
    readable = [Depends(requires_access_dag("GET"))]
    app.add_api_route("/", overview)
    app.add_api_route("/pipelines/{dag_id}/report.html", report, dependencies=readable)
    app.add_api_route("/pipelines/{dag_id}/docs/{page}", data_docs, dependencies=readable)
    for error in (HTTPException, WindowmillError):
        app.add_exception_handler(error, _problem)
    return app
