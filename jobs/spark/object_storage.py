"""Spark's own access to object storage, needed only where Spark itself reads a source: Hadoop's names for a place and its credentials.

Spark never commits there: its log stores check that a version is absent and then write it, so they overwrite other writers' commits.
"""

from __future__ import annotations

import re

from windowmill.checkpoints.places import absolute
from windowmill.checkpoints.stores import options_of
from windowmill.jobs.spark.jars import has_s3_jars
from windowmill.windowing.errors import MachineError
from windowmill.windowing.redaction import redacted

ABSOLUTE = re.compile(r"[a-z0-9]+:/|/")
#: Options of delta-rs, without ``aws_``, and Hadoop's names for them.
_NAMES = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "endpoint": "fs.s3a.endpoint",
    "endpoint_url": "fs.s3a.endpoint",
    "endpoint_url_s3": "fs.s3a.endpoint",
    "default_region": "fs.s3a.endpoint.region",
    "region": "fs.s3a.endpoint.region",
}


def spark_path(place: str) -> str:
    """``place`` as Spark takes it: an absolute path, or a URI with Hadoop's scheme.

    The JVM resolves relative paths in the folder where it was started, and takes escapes in a URI as they stand.

    Examples
    --------
    >>> spark_path("s3://bucket/flights"), spark_path("gs://bucket/flights")
    ('s3a://bucket/flights', 'gs://bucket/flights')
    """
    scheme, colon, rest = place.partition("://")
    return f"s3a://{rest}" if colon and scheme.lower() in ("s3", "s3n") else absolute(place)


def reader_options(place: str) -> dict[str, str]:
    """Options of a ``DataFrameReader`` of files at ``place``, with the credentials that delta-rs takes; empty on this machine.

    Raises
    ------
    MachineError
        If this machine lacks the jars.
    """
    if not spark_path(place).startswith("s3a://"):
        return {}
    if not has_s3_jars():
        raise MachineError(
            f"{redacted(place)}: only Spark can read these files, and it lacks the jars to read s3://; run `make s3-jars` (or `python -m "
            "windowmill.jobs.spark.jars --s3`), or rewrite the source without deletion vectors (REORG TABLE … APPLY (PURGE)) and odd types"
        )
    given = {name.lower().removeprefix("aws_"): value for name, value in (options_of(place) or {}).items()}
    found = {hadoop: given[name] for name, hadoop in _NAMES.items() if given.get(name)}
    if "fs.s3a.endpoint" in found:
        virtual = given.get("virtual_hosted_style_request", "").lower() in ("true", "1")
        found |= {"fs.s3a.path.style.access": "false" if virtual else "true"}
        found |= {"fs.s3a.connection.ssl.enabled": str(not found["fs.s3a.endpoint"].startswith("http://")).lower()}
    if "fs.s3a.session.token" in found:
        found["fs.s3a.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    return found


def full_path(root: str, path: str) -> str:
    """The file at ``path``, absolute or below the table at ``root``, as Spark takes it."""
    return path if ABSOLUTE.match(path) else f"{spark_path(root).rstrip('/')}/{path}"


def literal_path(root: str, path: str) -> str:
    """As :func:`full_path`, for a reader of files."""
    # Spark expands globs in paths, and partition values may contain their characters.
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", full_path(root, path))
