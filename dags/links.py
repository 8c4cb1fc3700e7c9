"""Where the pages of a pipeline are in Airflow's user interface, and the links to them on its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

#: Path of the pages below the address of the API server.
PREFIX = "/windowmill"


def page_of(pipeline: str, page: str) -> str:
    """Address of a page of ``pipeline``; a path if ``[api] base_url`` is not set."""
    return f"{(conf.get('api', 'base_url', fallback='') or '').rstrip('/')}{PREFIX}/pipelines/{quote(pipeline, safe='')}/{page}"


class ReportLink(BaseOperatorLink):
    """The pipeline's report."""

    name = "Report"
    page = "report.html"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow passes it
        return page_of(operator.spec.name, self.page)  # type: ignore[attr-defined]  # every operator that has this link has a spec


class DataDocsLink(ReportLink):
    """The pages of its validations."""

    name = "Data Docs"
    page = "docs/index.html"


#: Links of each task about a batch.
PAGES = (ReportLink(), DataDocsLink())
