"""Whether a file system lets only one of two writers create a version of a Delta table; the protocol rests on it."""

from __future__ import annotations

from urllib.parse import urlsplit

from windowmill.checkpoints.places import local_path
from windowmill.windowing.errors import MachineError
from windowmill.windowing.redaction import redacted

#: Schemes of stores that create an object only if it is absent, for delta-rs as for Delta's own log stores.
_CONDITIONAL = ("gs", "abfs", "abfss", "az", "adl", "azure", "wasb", "wasbs", "hdfs")
# delta-rs writes to S3 on condition that the object is absent, and no longer takes part in locks of DynamoDB. Spark's log stores
# for S3, with a lock table or without, check that a version is absent and then write it unconditionally.
_S3 = ("s3", "s3a", "s3n")


def check_commit_store(path: str) -> None:
    """Refuse a table at ``path`` where a writer could overwrite another one's commit; raises ``MachineError``."""
    if local_path(path) is not None:
        return
    scheme = urlsplit(path).scheme.lower()
    if scheme not in _CONDITIONAL:
        unknown = f"{scheme}:// is not known to keep two writers apart"
        reason = "on S3 Spark may overwrite what delta-rs has committed" if scheme in _S3 else unknown
        raise MachineError(
            f"{redacted(path)}: {reason}, so a batch could be lost or committed twice; use a local folder, or one of "
            f"{', '.join(f'{name}://' for name in _CONDITIONAL)}"
        )
