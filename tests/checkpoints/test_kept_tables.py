"""Tables that stay open for the length of a run are seen as they stand now, whatever others did to them."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from windowmill.checkpoints.delta_tables import actions_of, newest, tables_kept


@pytest.fixture
def place(tmp_path):
    path = str(tmp_path / "table")
    _append(path, 0)
    return path


def _append(path: str, number: int) -> None:
    once = CommitProperties(app_transactions=[Transaction("app", number)])
    write_deltalake(path, pa.table({"n": [number]}), mode="append", commit_properties=once)


def test_what_others_append_is_seen(place):
    with tables_kept():
        opened = newest(place)
        for number in (1, 2, 3):
            _append(place, number)
            table = newest(place)
            assert table is opened
            assert (table.version(), table.transaction_version("app"), len(table.file_uris())) == (number, number, number + 1)


def test_a_table_that_was_made_anew_is_another(place):
    with tables_kept():
        before = newest(place).metadata().id
        shutil.rmtree(place)
        with pytest.raises(TableNotFoundError):
            newest(place)
        _append(place, 7)
        assert newest(place).metadata().id != before
        assert newest(place).transaction_version("app") == 7


def test_an_older_copy_put_back_is_seen(place, tmp_path):
    shutil.copytree(place, tmp_path / "copy")
    with tables_kept():
        _append(place, 1)
        assert newest(place).version() == 1
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "copy", place)
        assert newest(place).version() == 0
        _append(place, 5)
        assert newest(place).transaction_version("app") == 5


def test_a_log_that_was_cleaned_up_is_read_anew(place):
    with tables_kept():
        newest(place)
        for number in (1, 2):
            _append(place, number)
        DeltaTable(place).create_checkpoint()
        for version in (0, 1):
            Path(place, "_delta_log", f"{version:020d}.json").unlink()
        _append(place, 3)
        assert (newest(place).version(), len(newest(place).file_uris())) == (3, 4)


def test_a_transaction_is_found_after_others_made_a_checkpoint_and_cleaned_up(place):
    for number in (1, 2):
        _append(place, number)
    with tables_kept():
        newest(place)
        DeltaTable(place).create_checkpoint()
        for version in (0, 1):
            Path(place, "_delta_log", f"{version:020d}.json").unlink()
        assert newest(place).transaction_version("app") == 2
        assert newest(place).transaction_version("another") is None


def test_a_symbolic_link_may_come_to_lead_to_another_table(place, tmp_path):
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(place)
    _append(str(other), 7)
    with tables_kept():
        before = newest(str(link)).metadata().id
        link.unlink()
        link.symlink_to(other)
        assert newest(str(link)).metadata().id != before


def test_tables_are_kept_by_the_thread_and_for_the_context(place):
    assert newest(place) is not newest(place)
    with tables_kept():
        mine, theirs = newest(place), []
        thread = threading.Thread(target=lambda: theirs.append(newest(place)))
        thread.start()
        thread.join()
        assert theirs[0] is not mine
        assert newest(place) is mine
    assert newest(place) is not mine


def test_texts_in_a_log_may_hold_any_line_break_of_unicode():
    texts = ["\u2028", "\u2029", "\x85", "\x1c", "a\nb"]
    actions = [{"add": {"stats": json.dumps({"minValues": {"k": text}}, ensure_ascii=False)}} for text in texts]
    entry = "\n".join(json.dumps(action, ensure_ascii=False) for action in actions) + "\r\n\n"
    assert actions_of(entry.encode()) == actions
