"""Manifests: the files of a batch that are too many for its record, in a file beside the ledger that the record names with its digest."""

from __future__ import annotations

import hashlib
import zlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow.fs as pa_fs

from windowmill.checkpoints.stores import make_folder, store_of
from windowmill.windowing.errors import LedgerCorruptError, first_line

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Plan

#: Most files whose entries a record holds itself, each about a kilobyte.
MAX_FILES = 32


def folder_of(ledger: str) -> str:
    """The folder with the manifests of the ledger at this path."""
    return f"{ledger.rstrip('/')}.manifests"


def write_manifest(ledger: str, plan: Plan, content: bytes) -> tuple[str, str]:
    """Write a batch's manifest; returns its name and digest."""
    name = f"b{plan.batch:06d}-{plan.attempt}.json.z"
    make_folder(folder_of(ledger))
    with store_of(folder_of(ledger)).open_output_stream(name, buffer_size=1 << 16) as stream:
        stream.write(zlib.compress(content))
    return name, hashlib.sha256(content).hexdigest()


def read_manifest(ledger: str, name: str, digest: str) -> bytes:
    """The content of a manifest; raises ``LedgerCorruptError`` if it is missing or another one."""
    try:
        with store_of(folder_of(ledger)).open_input_file(name) as stream:
            content = zlib.decompress(stream.read())
    except (OSError, zlib.error) as err:
        raise LedgerCorruptError(
            f"ledger {ledger}: the manifest {name} cannot be read ({first_line(err)}); restore the folder {folder_of(ledger)} from a copy"
        ) from err
    if hashlib.sha256(content).hexdigest() != digest:
        raise LedgerCorruptError(f"ledger {ledger}: the manifest {name} is damaged; restore the folder {folder_of(ledger)} from a copy")
    return content


def prune(ledger: str, hours: int) -> int:
    """Remove manifests that are older than so many ``hours``, except the newest one; returns how many."""
    store = store_of(folder_of(ledger))
    found = sorted(store.get_file_info(pa_fs.FileSelector("", allow_not_found=True)), key=lambda info: str(info.base_name))
    limit = datetime.now(UTC) - timedelta(hours=hours)
    old = [info for info in found[:-1] if info.mtime is not None and info.mtime < limit]
    for info in old:
        store.delete_file(info.path)
    return len(old)
