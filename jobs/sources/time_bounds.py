"""Bounds of the event times in the files of a source, by the statistics in its log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.delta_log import physical_names
from windowmill.jobs.sources.statistics import span

if TYPE_CHECKING:
    from windowmill.windowing.time_axis import Time


def first_time(source: SourceTable, files: Sequence[AddedFile], time: Time) -> int | None:
    """A lower bound of the event times in ``files``, on the axis; null where statistics are missing."""
    lows = [None if found is None else found[0] for found in spans(source, files, time.column, time.tick_us)]
    return None if None in lows else min((low for low in lows if low is not None), default=None)


def times_from(source: SourceTable, reading: Reading, time: Time, begin: int) -> Reading:
    """``reading`` without the files whose event times all lie before the instant ``begin``."""
    stays = [found is None or found[2] >= begin for found in spans(source, reading.files, time.column, time.tick_us)]
    files = tuple(file for file, kept in zip(reading.files, stays, strict=True) if kept)
    return replace(reading, files=files, snapshot_files=sum(stays[: reading.snapshot_files]))


def spans(source: SourceTable, files: Sequence[AddedFile], column: str, tick_us: int) -> list[tuple[int, int, int] | None]:
    """For each file a lower bound of the times in ``column``, and a lower and an upper bound of the greatest; null without statistics.

    Numbers count ``tick_us`` microseconds.
    """
    kind = next((field["type"] for field in json.loads(source.schema_json)["fields"] if field["name"] == column), None)
    if kind not in ("timestamp", "long", "integer", "short", "byte"):
        return [None] * len(files)
    name = physical_names(source.schema_json).get(column, column)
    return [span(file.stats, name, instants=kind == "timestamp", tick_us=tick_us) for file in files]
