"""Finishes a purge once the tables no longer contain its keys: removes savepoints, pages and records that name them. No JVM.

It may be repeated: as long as the file with the keys exists, which is deleted last, it has not been done.
"""

from __future__ import annotations

from dataclasses import dataclass

from windowmill.checkpoints import savepoints
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places, Runnable, local_path
from windowmill.checkpoints.rewriting import ErasedKeys, KeysFile, forget_bounds
from windowmill.checkpoints.stores import remote_store_of, remove_folder
from windowmill.expectations.docs import Folder, remove_pages


@dataclass(frozen=True)
class Forgotten:
    """What has been removed: names of savepoints, the number of pages of Data Docs, and whether the report was."""

    savepoints: tuple[str, ...] = ()
    pages: int = 0
    report: bool = False

    def and_then(self, later: Forgotten | None) -> Forgotten:
        """What this purge and a ``later`` one have removed."""
        if later is None:
            return self
        return Forgotten(self.savepoints + later.savepoints, self.pages + later.pages, self.report or later.report)


def forget(runnable: Runnable, ledger: Ledger) -> Forgotten | None:
    """Finish the purge that is the newest batch of ``ledger``, and has been published; null if nothing is left to do."""
    newest = ledger.newest
    if newest is None or not newest.plan.purges:
        return None
    file = KeysFile(ledger.path, newest.plan.attempt)
    if not file.is_there:
        return None
    keys, places = file.read(), runnable.places
    # A restoration would read rows of the keys again, and could not distinguish removed rows from others.
    dropped = savepoints.savepoint_names(places.savepoints)
    for name in dropped:
        savepoints.drop(places.savepoints, name)
    folder = Folder(places.docs, remote_store_of(places.docs))
    found = Forgotten(dropped, remove_pages(folder, runnable.name, keys.are_named_in), _remove_report(places, keys))
    for leftover in (places.restated, *(f"{places.held}/_{role}" for role in ("sink", "current", "quarantine", "state"))):
        remove_folder(leftover)
    forget_bounds(ledger.path)
    ledger.refresh()
    file.remove()
    return found


def _remove_report(places: Places, keys: ErasedKeys) -> bool:
    """Remove the report if it may name one of the keys; returns whether it did."""
    local = local_path(places.report)
    root, name = (str(local.parent), local.name) if local else (places.root, places.report.rpartition("/")[2])
    folder = Folder(root, remote_store_of(root))
    if name not in folder.names() or not keys.are_named_in(folder.read(name)):
        return False
    folder.remove(name)
    return True
