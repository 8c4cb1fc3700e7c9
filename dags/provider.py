"""Tells Airflow what this package brings: ``airflow providers list`` shows it."""

from __future__ import annotations

from typing import Any

_NAME = "windowmill"


def get_provider_info() -> dict[str, Any]:
    """What the entry point ``apache_airflow_provider`` gives."""
    return {
        "package-name": _NAME,
        "name": _NAME,
        "description": "Incremental sliding-window aggregation in micro-batches on Spark and Delta",
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [f"windowmill.dags.{module}" for module in ("operators", "rulings", "submit")],
            }
        ],
        "sensors": [{"integration-name": _NAME, "python-modules": ["windowmill.dags.sensors"]}],
        "triggers": [{"integration-name": _NAME, "python-modules": ["windowmill.dags.triggers"]}],
        "extra-links": ["windowmill.dags.links.ReportLink", "windowmill.dags.links.DataDocsLink"],
        # The scheme of assets whose table is not named by a path; their URIs need no normalizing.
        "asset-uris": [{"schemes": [_NAME], "handler": None}],
    }
