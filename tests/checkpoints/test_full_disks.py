"""Files that cannot be finished: the first error is the one that is reported, and what has been written goes."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windowmill.checkpoints import data_files
from windowmill.checkpoints.data_files import FileWriter
from windowmill.checkpoints.stores import is_disk_full, is_unavailable, remedy
from windowmill.jobs.spark import failures
from windowmill.windowing.errors import StorageFullError

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.mark.covers("D1")
@pytest.mark.parametrize("step", ["write_table", "close"])
@pytest.mark.parametrize("refused", [False, True], ids=["a full disk", "a store that also refuses to clean up"])
def test_what_a_write_says_is_not_hidden_by_what_cleaning_up_says(tmp_path, monkeypatch, step, refused):
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def forbidden(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "403 Forbidden")

    monkeypatch.setattr(pq.ParquetWriter, step, fails)
    # A writer closes itself when it is collected, which may be before the patch ends.
    monkeypatch.setattr(pq.ParquetWriter, "__del__", lambda _: None)
    if refused:
        monkeypatch.setattr(data_files, "_delete", forbidden)
    with (
        pytest.raises(OSError, match="No space left") as raised,
        FileWriter(str(tmp_path), ROWS.schema, batch=0, attempt="a", task=0) as writer,
    ):
        writer.write(ROWS)
    assert is_disk_full(raised.value)
    assert refused or list(Path(tmp_path).iterdir()) == []


@pytest.mark.covers("D1")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_told_whatever_error_hides_it(code):
    hiding = RuntimeError("file metadata is only available after writer close")
    hiding.__context__ = OSError(code, "no room")
    assert "no room: the disk is full or a quota is used up" in failures.explain(hiding)
    assert isinstance(failures.typed(hiding), StorageFullError)


_FULL, _ASK, _COPY = "free some space and run again", "run again; if it stays, check the connection", "restore it from a copy"
_PERMISSION = "give the user of this run the permission"


@pytest.mark.covers("S10")
@pytest.mark.parametrize(
    ("err", "advice"),
    [
        (OSError("Generic S3 error: Client error with status 400 Bad Request: <Code>ExpiredToken</Code>"), _ASK),
        (OSError("Generic S3 error: error sending request for url (http://host/k)"), _ASK),
        (OSError("The operation lacked the necessary privileges to complete for path k"), _ASK),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), _ASK),
        (OSError(errno.EIO, "Input/output error"), _ASK),
        (PermissionError(errno.EACCES, "Permission denied"), _PERMISSION),
        (OSError("Generic LocalFileSystem error: Unable to open file: Read-only file system (os error 30)"), _PERMISSION),
        (OSError(errno.ENOSPC, "No space left on device"), _FULL),
        (OSError("Kernel error -> Generic LocalFileSystem error: Unable to copy data to file: … (os error 28)"), _FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), _FULL),
        (FileNotFoundError(errno.ENOENT, "No such file"), _COPY),
        (OSError("Object at location k not found: Generic S3 error: 404 Not Found"), _COPY),
        (OSError("Generic LocalFileSystem error: Requested range was invalid"), _COPY),
        (OSError("Couldn't deserialize thrift: TProtocolException"), _COPY),
        (pa.ArrowInvalid("Parquet magic bytes not found in footer"), _COPY),
    ],
    ids=str,
)
def test_nobody_is_sent_for_a_copy_where_storage_does_not_answer_or_is_full_or_forbidden(err, advice):
    assert is_unavailable(err) == (advice != _COPY)
    assert remedy(err, _COPY).startswith(advice)
