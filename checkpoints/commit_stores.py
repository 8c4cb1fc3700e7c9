"""Whether a file system lets only one of two writers create a version of a Delta table; the protocol rests on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from windowmill.checkpoints.places import local_path
from windowmill.windowing.errors import MachineError
from windowmill.windowing.redaction import redacted

_S3 = ("s3", "s3a", "s3n")
#: Schemes of stores that create an object only if it is absent, for delta-rs as for Delta's own log stores.
_CONDITIONAL = ("gs", "abfs", "abfss", "az", "adl", "azure", "wasb", "wasbs", "hdfs")
#: Delta's log store for S3 within one JVM: others' commits are overwritten.
_SINGLE_DRIVER = "S3SingleDriverLogStore"
_IMPLEMENTATION = "io.delta.storage.S3DynamoDBLogStore"


def check_commit_store(path: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a table at ``path`` where delta-rs could overwrite another writer's commit.

    Raises
    ------
    MachineError
        If the store is S3 and ``environment`` names no locking provider, or the store is not known to keep writers apart.
    """
    scheme = _scheme(path)
    if scheme is None or scheme in _CONDITIONAL:
        return
    if scheme not in _S3:
        raise MachineError(
            f"{redacted(path)}: {scheme}:// is not known to keep two writers apart, so a batch could be committed twice; use a local "
            f"folder, s3:// with a lock table, or one of {', '.join(f'{name}://' for name in _CONDITIONAL)}"
        )
    values = {name.upper(): value.lower() for name, value in environment.items()}
    if values.get("AWS_S3_LOCKING_PROVIDER") != "dynamodb" or values.get("AWS_S3_ALLOW_UNSAFE_RENAME") in ("true", "1"):
        raise MachineError(
            f"{redacted(path)}: S3 does not keep two writers apart without a lock table, so a batch could be committed twice; set "
            f"AWS_S3_LOCKING_PROVIDER=dynamodb, leave AWS_S3_ALLOW_UNSAFE_RENAME unset, and give Spark "
            f"spark.delta.logStore.{scheme}.impl={_IMPLEMENTATION}"
        )


def check_log_store(path: str, setting_of: Callable[[str, str], str | None]) -> None:
    """Refuse a table at ``path`` where Spark could overwrite another writer's commit.

    Parameters
    ----------
    setting_of
        The session's setting of a name, or the default given with it; such as ``spark.conf.get``.

    Raises
    ------
    MachineError
        If the store is S3 and Spark has no log store for it that locks.
    """
    scheme = _scheme(path)
    if scheme in _S3:
        setting = f"spark.delta.logStore.{scheme}.impl"
        if (setting_of(setting, "") or _SINGLE_DRIVER).endswith(_SINGLE_DRIVER):
            raise MachineError(
                f"{redacted(path)}: Spark's log store for {scheme}:// does not see delta-rs's locks, so a batch could be committed twice; "
                f"set {setting}={_IMPLEMENTATION}, with the lock table that delta-rs uses"
            )


def _scheme(path: str) -> str | None:
    return None if local_path(path) is not None else urlsplit(path).scheme.lower()
