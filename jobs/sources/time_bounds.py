"""Bounds of the event times in the files of a source, by the statistics in its log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.delta_log import physical_names
from windowmill.jobs.sources.statistics import span


def first_time(source: SourceTable, files: Sequence[AddedFile], column: str) -> int | None:
    """An instant on the axis before which no value of ``column`` in ``files`` lies; null if their statistics do not tell."""
    lows = [None if found is None else found[0] for found in spans(source, files, column)]
    return None if None in lows else min((low for low in lows if low is not None), default=None)


def times_from(source: SourceTable, reading: Reading, column: str, begin: int) -> Reading:
    """``reading`` without the files whose values of ``column`` all lie before the instant ``begin``."""
    stays = [found is None or found[2] >= begin for found in spans(source, reading.files, column)]
    files = tuple(file for file, kept in zip(reading.files, stays, strict=True) if kept)
    return replace(reading, files=files, settled=sum(stays[: reading.settled]))


def spans(source: SourceTable, files: Sequence[AddedFile], column: str) -> list[tuple[int, int, int] | None]:
    """For each file a lower bound of the values of ``column``, a lower and an upper one of the greatest; null where it tells none."""
    kind = next((field["type"] for field in json.loads(source.schema_json)["fields"] if field["name"] == column), None)
    if kind not in ("timestamp", "long", "integer", "short", "byte"):
        return [None] * len(files)
    name = physical_names(source.schema_json).get(column, column)
    return [span(file.stats, name, instants=kind == "timestamp") for file in files]
