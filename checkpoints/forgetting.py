"""Takes the least and greatest values of columns out of the ledger: records list files with their statistics, which may name a key.

Only the commits of a batch need them. No JVM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from windowmill.checkpoints.assembling import CHANGES, MANIFEST
from windowmill.checkpoints.ledger import read_manifest, remove_manifest, write_manifest
from windowmill.checkpoints.record_table import DeltaRecords
from windowmill.checkpoints.records import LedgerRecord
from windowmill.windowing.errors import LedgerCorruptError

#: What the name of a manifest without bounds has at its end.
_REDACTED = "-redacted"


def forget_bounds(ledger: str) -> int:
    """Rewrite the records of the ledger at this path, all of whose commits have been made; returns the number of files rewritten."""
    replaced: list[str] = []

    def without(record: LedgerRecord) -> LedgerRecord:
        body = json.loads(record.body)
        changes = _without_bounds(body[CHANGES])
        manifest = body.get(MANIFEST)
        if manifest is not None:
            # An old one may have been removed by `maintain`.
            with suppress(LedgerCorruptError):
                content = json.loads(read_manifest(ledger, *manifest))
                if _REDACTED not in manifest[0]:
                    shorter = json.dumps({CHANGES: _without_bounds(content[CHANGES])}).encode()
                    manifest = list(write_manifest(ledger, record.batch, f"{record.attempt}{_REDACTED}", shorter))
                # A removal that died after the record may have left it.
                replaced.append(str(manifest[0]).replace(_REDACTED, ""))
        if changes == body[CHANGES] and manifest == body.get(MANIFEST):
            return record
        return replace(record, body=json.dumps(body | {CHANGES: changes} | ({} if manifest is None else {MANIFEST: manifest})))

    rewritten = DeltaRecords(ledger).rewrite(without)
    for name in replaced:
        with suppress(FileNotFoundError):
            remove_manifest(ledger, name)
    return rewritten


def _without_bounds(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of tables, as a record has them, whose files have no statistics but their number of rows."""

    def plain(file: Mapping[str, Any]) -> dict[str, Any]:
        return {**file, "stats": json.dumps({"numRecords": file["rows"]})}

    return {role: {**each, **{part: [plain(file) for file in each[part]] for part in ("adds", "kept")}} for role, each in changes.items()}
