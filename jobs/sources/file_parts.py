"""Divides plain files among tasks, as Spark divides them or by rows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa

from windowmill.jobs.sources.base import PlainFile
from windowmill.jobs.sources.plain_files import FilePart, Form, NotPlainError, OpenFile, RowGroup, status_of
from windowmill.jobs.spark.file_ranges import FileRange

#: The parts that each task reads.
Tasks = Sequence[Sequence[FilePart]]
#: Footers that are read at a time: most of it is waiting for a store.
_AT_A_TIME = 16


def number_of_rows(tasks: Tasks) -> int:
    """Number of rows that ``tasks`` read, usable or not."""
    return sum(part.rows for task in tasks for part in task)


def number_of_bytes(tasks: Tasks) -> int:
    """Number of bytes that ``tasks`` read, before compression."""
    return sum(part.bytes for task in tasks for part in task)


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file whose columns Arrow reads as Spark does; ``status`` is that of :func:`.status_of`, null if the file cannot change."""

    row_groups: Sequence[RowGroup]
    status: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.row_groups)


def examined(file: PlainFile, form: Form, columns: Sequence[str]) -> CheckedFile | None:
    """What ``file`` holds of ``columns``; null if it cannot be opened here, or Arrow would read a column otherwise than Spark."""
    try:
        with OpenFile(file, form) as opened:
            opened.check(columns)
            return CheckedFile(opened.row_groups(columns))
    except (NotPlainError, OSError, pa.ArrowException):  # Spark reads it, or says what is wrong
        return None


def all_examined(files: Sequence[PlainFile], form: Form, columns: Sequence[str]) -> list[CheckedFile] | None:
    """:func:`examined` of all ``files``; null if one is not plain."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        found: list[CheckedFile] = []
        for each in pool.map(lambda file: examined(file, form, columns), files):
            if each is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            found.append(each)
    return found


def parts_of(ranges: Sequence[Sequence[FileRange]], form: Form, columns: Sequence[str]) -> Tasks | None:
    """The parts of each task of Spark's own scan, in the same order; null if a file has changed or is not plain."""
    sizes = {part.path: part.size for task in ranges for part in task}
    files = {path: PlainFile(path, {name: name for name in form.types}, {}) for path in sizes}
    statuses = {path: status_of(path) for path in sizes}
    if any(status is None or status[0] != sizes[path] for path, status in statuses.items()):
        return None
    every = all_examined(list(files.values()), form, columns)
    if every is None:
        return None
    found = {path: replace(own, status=statuses[path]) for path, own in zip(sizes, every, strict=True)}
    index = {path: number for number, path in enumerate(sizes)}

    def part(piece: FileRange) -> FilePart:
        own = found[piece.path]
        return _part(
            index[piece.path],
            files[piece.path],
            own,
            [n for n, group in enumerate(own.row_groups) if piece.start <= group.middle < piece.stop],
        )

    tasks = [[part(piece) for piece in task] for task in ranges]
    groups = sum(len(part.row_groups) for task in tasks for part in task)
    return tasks if groups == sum(len(own.row_groups) for own in found.values()) else None


def divided(files: Sequence[PlainFile], found: Sequence[CheckedFile], rows_of_task: int, fewest: int) -> Tasks:
    """The row groups of ``files`` in order, divided into tasks of about ``rows_of_task`` rows, or at least ``fewest`` tasks."""
    total = sum(own.rows for own in found)
    n_tasks = max(1, fewest, -(-total // rows_of_task))
    tasks: list[list[FilePart]] = [[] for _ in range(n_tasks)]
    before = 0
    for index, (file, own) in enumerate(zip(files, found, strict=True)):
        chosen: dict[int, list[int]] = {}
        for number, group in enumerate(own.row_groups):
            # A row group belongs to the task in whose stretch of all rows its middle lies.
            chosen.setdefault(min(n_tasks - 1, (before + group.rows // 2) * n_tasks // max(1, total)), []).append(number)
            before += group.rows
        for task, numbers in chosen.items():
            tasks[task].append(_part(index, file, own, numbers))
    return [task for task in tasks if task]


def _part(index: int, file: PlainFile, own: CheckedFile, numbers: Sequence[int]) -> FilePart:
    groups = [own.row_groups[number] for number in numbers]
    rows, size = sum(group.rows for group in groups), sum(group.bytes for group in groups)
    return FilePart(index, file, tuple(numbers), groups[0].first if groups else 0, rows, size, own.status)
