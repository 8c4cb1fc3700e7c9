"""Refuses changes that a table would not take as its owner has altered it: before they are recorded, since later they could only wait."""

from __future__ import annotations

import json
from typing import Any

from deltalake import DeltaTable, Field
from deltalake import Schema as DeltaSchema

from windowmill.checkpoints.batches import Changes
from windowmill.windowing.errors import SinkRefusedError, StateError, WindowmillError

#: Delta for Spark appends each of these types to columns of the later ones.
_INTEGERS = ("byte", "short", "integer")
#: Parts of a type that do not tell its values' type.
_APART = ("containsNull", "valueContainsNull", "nullable", "metadata")
#: Metadata of columns whose values a writer makes.
_MADE = ("delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT")


def refuse_misfit(role: str, place: str, table: DeltaTable, changes: Changes) -> None:
    """Raise an error if ``table``, of this ``role``, does not take ``changes``: because of its columns, or because it is append-only.

    Raises
    ------
    SinkRefusedError, StateError
        With the column, and what to do.
    """
    why = _misfit(role, table, changes)
    if why is not None:
        error: type[WindowmillError] = SinkRefusedError if role == "sink" else StateError
        raise error(f"{role} {place}: {why}, and run again")


def lacking(table: DeltaTable, schema: str) -> list[Field]:
    """The columns of ``schema`` (Delta JSON) that the table lacks."""
    known = {each.name.lower() for each in table.schema().fields}
    return [each for each in DeltaSchema.from_json(schema).fields if each.name.lower() not in known]


def _misfit(role: str, table: DeltaTable, changes: Changes) -> str | None:
    if changes.removes and table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        return "is append-only, so rows that it has cannot be replaced; unset its property delta.appendOnly"
    if changes.schema is None:
        return None
    written = {each["name"]: each for each in json.loads(changes.schema)["fields"]}
    missed = lacking(table, changes.schema) if role == "sink" else []
    if missed:
        return f"has no column {missed[0].name}, which the results have; put it back"
    for stored in json.loads(table.schema().to_json())["fields"]:
        name, own = stored["name"], written.get(stored["name"])
        if own is not None and not _takes(stored["type"], own["type"]):
            return (
                f"its column {name} is now of type {_named(stored['type'])}, the results have {_named(own['type'])}; change it back, or "
                "give the pipeline a new sink and backfill it there"
            )
        if stored["nullable"] or (own is None and not stored["metadata"].keys().isdisjoint(_MADE)):
            continue
        if own is None or _has_nulls(name, changes):
            return f"its column {name} is NOT NULL, the results have nulls there; drop that constraint (ALTER COLUMN … DROP NOT NULL)"
    return None


def _takes(stored: Any, written: Any) -> bool:
    if stored in _INTEGERS and written in _INTEGERS:
        return _INTEGERS.index(written) <= _INTEGERS.index(stored)
    return bool(_bare(stored) == _bare(written))


def _bare(kind: Any) -> Any:
    """A type of Delta's JSON without what it says about nulls in elements and fields."""
    if isinstance(kind, dict):
        return {name: _bare(value) for name, value in kind.items() if name not in _APART}
    return [_bare(each) for each in kind] if isinstance(kind, list) else kind


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _has_nulls(name: str, changes: Changes) -> bool:
    """Whether the column has nulls, or may have: its files count them, unless they have more columns than statistics."""
    return any(file.rows and json.loads(file.stats).get("nullCount", {}).get(name, 1) for file in changes.files)
