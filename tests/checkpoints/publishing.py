"""Puts rows into a table of the pipeline as a batch does: in files, which one commit names."""

from __future__ import annotations

import pyarrow as pa

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import DeltaRsCommitter, Publication
from windowmill.checkpoints.data_files import FileWriter


def publish(path: str, rows: pa.Table, batch: int, role: str = "state") -> None:
    """Commit ``rows`` as those of ``batch``."""
    with FileWriter(path, rows.schema, batch=batch, attempt="a", task=0) as writer:
        writer.write(rows)
    DeltaRsCommitter().commit(path, Publication(role, "app", batch, Changes.of(rows.schema, writer.close())))
