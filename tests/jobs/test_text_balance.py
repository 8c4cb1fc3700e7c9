"""Lines, rows and quarantined rows of text files balance, whatever their quotes, line ends, encodings and compressions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.text_balance import Drawn, Found, drawn
from windowmill.jobs.sources import text_lines
from windowmill.jobs.sources.base import PlainFile
from windowmill.jobs.sources.options import declared
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.text_files import TextForm
from windowmill.jobs.sources.unusable_rows import ExpectedColumns, reasons_of
from windowmill.windowing.columnar.added_columns import UNREAD

#: Number of files, and the seed of the first one; `make fuzz` tries 10,000.
COUNT, SEED = int(os.environ.get("WINDOWMILL_TEXT_FILES", "300")), int(os.environ.get("WINDOWMILL_TEXT_FILES_SEED", "1"))
_OPTIONS = {"sep": "separator", "multiLine": "multi_line", "nullValue": "null"}


def form_of(file: Drawn, **given: Any) -> TextForm:
    options = {_OPTIONS.get(name, name): value for name, value in file.options.items()}
    names = () if options.get("header") else ("k", "v")
    return TextForm(file.format, **options, columns=names, expected=ExpectedColumns(("k", "v")), may_lack=True)  # type: ignore[arg-type]


def found_in(file: Drawn, path: Path) -> tuple[list[Found], int]:
    """The rows that the reader finds, and how many planning counts."""
    path.write_bytes(file.data)
    schema, form = declared("k STRING, v BIGINT"), form_of(file)
    plain = PlainFile(str(path), {"k": "k", "v": "v"}, {}, row_form=form)
    rows: list[Found] = []
    for batch in form.batches(plain, Form(dict(zip(schema.names, schema.types, strict=True))), ["k", "v", UNREAD]):
        columns = [batch.column("k").to_pylist(), batch.column("v").to_pylist(), reasons_of(batch.column(UNREAD)).to_pylist()]
        rows += zip(*columns, strict=True)
    return rows, form.count(str(path))


@pytest.mark.parametrize("share", range(4))
def test_lines_rows_and_quarantined_rows_balance(tmp_path, monkeypatch, share):
    for seed in range(SEED + share, SEED + COUNT, 4):
        file = drawn(seed)
        monkeypatch.setattr(text_lines, "BLOCK_BYTES", (1, 5, 64, 4 << 20)[seed // 4 % 4])
        rows, counted = found_in(file, tmp_path / "file")
        assert sorted(map(repr, rows)) == sorted(map(repr, file.rows)), (seed, file)
        assert counted == len(file.rows), (seed, file)
