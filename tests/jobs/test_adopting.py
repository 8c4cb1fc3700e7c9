"""Which rows of an earlier attempt are those that this one computed."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from windowmill.jobs.batch.adopting import same_quarantined


def quarantined(row: str) -> pa.Table:
    return pa.table({"batch": [3], "reason": ["too_late"], "source_version": [7], "row": [row]})


@pytest.mark.parametrize(
    ("row", "same"),
    [
        ('{"k":"a","v":1.0E7,"n":3}', True),
        ('{"k":"a","v":10000000.0,"n":3}', True),
        ('{"k":"a","v":10000010.0,"n":3}', False),
        ('{"k":"a","v":1.0E7,"n":4}', False),
        ('{"k":"b","v":1.0E7,"n":3}', False),
        ('{"k":"a","v":null,"n":3}', False),
    ],
)
def test_numbers_in_quarantined_rows_may_be_written_with_other_digits(tmp_path, row, same):
    write_deltalake(str(tmp_path / "q"), quarantined('{"k":"a","v":1.0E7,"n":3}'))
    assert same_quarantined(quarantined(row).drop_columns(["batch"]), str(tmp_path / "q"), 3) == same
    assert not same_quarantined(quarantined(row).drop_columns(["batch"]), str(tmp_path / "q"), 4)
