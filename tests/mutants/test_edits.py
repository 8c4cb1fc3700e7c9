"""Edits change the one place that their pattern matches, and fail where there is none or more than one."""

from __future__ import annotations

import pytest

from tests.mutants.edits import Edit, always, before, edited, instead, never, without
from tests.mutants.mutant import Mutant

TEXT = """
def charge(rows, limit):
    # Refuse large batches.
    if len(rows) > limit or not rows:
        raise ValueError(f"ä {limit}")
    check(rows, strict=True)
    return {"rows": rows, "limit": limit}

class Bill:
    def charge(self, rows):
        return rows
"""


@pytest.mark.parametrize(
    ("edit", "was", "becomes"),
    [
        (instead("len(_1) > _2", "len(_1) >= _2"), "len(rows) > limit", "(len(rows) >= limit)"),
        (
            instead("if len(_) > _ or _: ...", "return"),
            'if len(rows) > limit or not rows:\n        raise ValueError(f"ä {limit}")',
            "return",
        ),
        (instead("strict=_", "strict=False"), "strict=True", "strict = False"),
        (never("_ > _ or _"), "len(rows) > limit or not rows", "False"),
        (always("not _"), "not rows", "True"),
        (without("not _"), "len(rows) > limit or not rows", "(len(rows) > limit)"),
        (without('raise ValueError(f"...")'), 'raise ValueError(f"ä {limit}")', "pass"),
        (without("check(...)"), "check(rows, strict=True)", "pass"),
        (without("strict=_"), "check(rows, strict=True)", "check(rows)"),
        (without('"limit": _'), '{"rows": rows, "limit": limit}', "({'rows': rows})"),
        (before("check(..., strict=True)", "rows = []"), "check(", "rows = []\n    check("),
    ],
)
def test_an_edit_changes_one_place(edit: Edit, was: str, becomes: str):
    assert edited(TEXT, "charge", edit) == TEXT.replace(was, becomes)


def test_an_edit_is_made_in_the_function_of_that_name():
    assert edited(TEXT, "Bill.charge", instead("return _1", "return [_1]")) == TEXT.replace("return rows\n", "return [rows]\n")


@pytest.mark.parametrize(
    ("function", "edit", "fault"),
    [
        ("bills:charge", never("_ < _"), "matches 0 times in charge"),
        ("bills:charge", without("_"), r"matches \d+ times in charge"),
        ("bills:Bill.refund", never("_ > _"), "0 functions or classes are named Bill.refund"),
        ("bills:charge", instead("len(_) > _", "sum(amounts) > 1"), " has no amounts"),
    ],
)
def test_an_edit_that_fits_no_place_is_refused(function: str, edit: Edit, fault: str):
    with pytest.raises(ValueError, match=rf"mutant large-bills: bills\.py.*{fault}; bring the mutant up to date"):
        Mutant("large-bills", function, edit, ()).applied(TEXT.replace("check(", "print("))
