"""Credentials of object storage from an Airflow connection, as the environment variables that runs take them from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from windowmill.windowing.errors import SpecError

#: Type of connection -> parts of it, or fields of its extra, and the variables that they become.
_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "aws": {
        "login": "AWS_ACCESS_KEY_ID",
        "password": "AWS_SECRET_ACCESS_KEY",
        "aws_session_token": "AWS_SESSION_TOKEN",
        "region_name": "AWS_REGION",
        "endpoint_url": "AWS_ENDPOINT_URL",
        "profile_name": "AWS_PROFILE",
    },
    "google_cloud_platform": {"key_path": "GOOGLE_SERVICE_ACCOUNT", "keyfile_dict": "GOOGLE_SERVICE_ACCOUNT_KEY"},
    "wasb": {
        "login": "AZURE_STORAGE_ACCOUNT_NAME",
        "password": "AZURE_STORAGE_ACCOUNT_KEY",
        "sas_token": "AZURE_STORAGE_SAS_TOKEN",
        "tenant_id": "AZURE_STORAGE_TENANT_ID",
    },
}


def storage_variables(conn_id: str | None) -> dict[str, str]:
    """The variables of the Airflow connection ``conn_id``; none without one.

    Raises
    ------
    SpecError
        If it is of another type than ``aws``, ``google_cloud_platform`` and ``wasb``.
    """
    if conn_id is None:
        return {}
    from airflow.sdk import BaseHook  # not needed for parsing

    connection = BaseHook.get_connection(conn_id)
    known = _VARIABLES.get(connection.conn_type or "")
    if known is None:
        raise SpecError(
            f"storage_conn_id: the connection {conn_id} is of type {connection.conn_type!r}; expected one of {', '.join(_VARIABLES)}, or "
            "leave it out and set the variables on the workers"
        )
    parts: dict[str, Any] = connection.extra_dejson | {"login": connection.login, "password": connection.password}
    found = {variable: str(parts[name]) for name, variable in known.items() if parts.get(name)}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    return found


@contextmanager
def storage_environment(conn_id: str | None) -> Iterator[None]:
    """Put the variables of the connection into the environment of this task's process."""
    added = storage_variables(conn_id)
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
