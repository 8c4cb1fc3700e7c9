"""Paths of the catalog tables that a pipeline names: Spark is asked once, and its answer is recorded in the ledger's folder. No JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pa_fs

from windowmill.checkpoints.places import Places
from windowmill.checkpoints.stores import make_folder, store_of, use_options_of
from windowmill.windowing.errors import LedgerError, first_line
from windowmill.windowing.spec import Pipeline

#: The file of the record, and the fields of a spec that may name a table of a catalog.
FILE, FIELDS = "catalog-tables.json", ("source", "sink")


def named(pipeline: Pipeline) -> dict[str, str]:
    """The tables of a catalog that the spec names, by field."""
    tables = {field: getattr(pipeline, field) for field in FIELDS}
    return {field: table.table for field, table in tables.items() if table is not None and table.table is not None}


def recorded(pipeline: Pipeline) -> dict[str, str]:
    """The recorded locations of tables, by name.

    Raises
    ------
    LedgerError
        If the record cannot be read.
    """
    root = Places.of(pipeline).root
    store = store_of(root)
    try:
        if store.get_file_info(FILE).type != pa_fs.FileType.File:
            return {}
        with store.open_input_file(FILE) as file:
            found: Mapping[str, Any] = json.loads(file.read())
        return {str(table): str(place) for table, place in found.items()}
    except (OSError, ValueError, AttributeError) as err:
        raise LedgerError(f"{root}/{FILE}: cannot be read ({first_line(err)}); remove it, and run again") from err


def record(pipeline: Pipeline, found: Mapping[str, str]) -> None:
    """Record the locations of tables by name."""
    root = Places.of(pipeline).root
    make_folder(root)
    with store_of(root).open_output_stream(FILE, buffer_size=1 << 16) as file:
        file.write(json.dumps(dict(found), indent=2).encode())


def located(pipeline: Pipeline) -> Pipeline:
    """``pipeline`` with the paths of those of its tables whose location is recorded; their ``storage_options`` are registered."""
    tables = named(pipeline)
    if not tables or (pipeline.sink is None and pipeline.checkpoints is None):
        return pipeline
    known = recorded(pipeline)
    paths = {field: known[table] for field, table in tables.items() if table in known}
    changed = {field: getattr(pipeline, field).model_copy(update={"path": path, "table": None}) for field, path in paths.items()}
    found = pipeline.model_copy(update=changed)
    use_options_of(found)
    return found
