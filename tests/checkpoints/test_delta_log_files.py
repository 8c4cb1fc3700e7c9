"""Entries of a Delta log, read without delta-rs."""

from __future__ import annotations

import json

import pytest

from windowmill.checkpoints.delta_tables import actions_of


def test_texts_may_hold_any_line_break_of_unicode():
    texts = ["\u2028", "\u2029", "\x85", "\x1c", "a\nb"]
    actions = [{"add": {"stats": json.dumps({"minValues": {"k": text}}, ensure_ascii=False)}} for text in texts]
    entry = "\n".join(json.dumps(action, ensure_ascii=False) for action in actions) + "\r\n\n"
    assert actions_of(entry.encode()) == actions


@pytest.mark.parametrize("entry", [b'{"add": {}', b'{"add": "\xff"}'])
def test_a_damaged_entry_is_told(entry):
    with pytest.raises(ValueError, match=r"."):
        actions_of(entry)
