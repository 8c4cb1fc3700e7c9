"""Airflow's plugin: the reports of pipelines inside Airflow's own pages.

Every process of Airflow loads this module, so it imports nothing; the API server imports :mod:`windowmill.dags.pages` when somebody opens
a page.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from windowmill.dags.links import PREFIX


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """The pages as an ASGI application."""
    from windowmill.dags.pages import application

    await application()(scope, receive, send)


APPS = [{"app": pages, "url_prefix": PREFIX, "name": "Reports of windowmill"}]
VIEWS = [
    {"name": "Pipelines", "href": f"{PREFIX}/", "destination": "nav", "category": "browse", "url_route": "windowmill"},
    {
        "name": "Report",
        "href": f"{PREFIX}/pipelines/{{DAG_ID}}/report.html",
        "destination": "dag",
        "url_route": "windowmill_report",
    },
]


class WindowmillPlugin(AirflowPlugin):
    """The overview of pipelines in the menu *Browse*, and the report as a tab of each pipeline's DAG."""

    name = "windowmill"
    fastapi_apps = APPS
    external_views = VIEWS
