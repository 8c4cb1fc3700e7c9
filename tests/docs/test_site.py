"""The site shows the pages as they are written."""

from __future__ import annotations

import pytest

from scripts.site import separated


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("It has:\n- a\n  and more\n- b", "It has:\n\n- a\n  and more\n- b"),
        ("First:\n1. a\n2. b", "First:\n\n1. a\n2. b"),
        ("So:\n| a |\n|---|\n| 1 |", "So:\n\n| a |\n|---|\n| 1 |"),
        ("Is there:\n\n- a", "Is there:\n\n- a"),
        ("```yaml\nwindows:\n- a\n```", "```yaml\nwindows:\n- a\n```"),
        ("So:\n```\n| a |\n```\n- b", "So:\n```\n| a |\n```\n\n- b"),
    ],
)
def test_lists_and_tables_begin_after_an_empty_line(written, shown):
    assert separated(written) == shown
