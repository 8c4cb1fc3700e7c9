"""What tasks return to the driver comes as it was, and nothing else does."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile
from windowmill.jobs.batch.job import ComputedBatch
from windowmill.jobs.layouts.input import Emission
from windowmill.jobs.layouts.limits import OnlySparkError, TooLargeError
from windowmill.jobs.layouts.output import Output, decoded, encoded
from windowmill.windowing.counts import Counts, WindowRows
from windowmill.windowing.errors import StateCorruptError

FILE = DataFile("part-0.parquet", 10, 2, 1_000, '{"numRecords":2}')
COUNTS = Counts(rows_applied=3, rows_late=1, quarantined={"null_time": 1}, late_missed={"w": 1}, windows={"w": WindowRows(2, 10, 20)})
VALUES = [
    None,
    (1, 2.5, "a", True, float("inf")),
    {3, 4},
    [FILE],
    Output({"sink": (FILE,)}, COUNTS, 1, frozenset({"here:1"})),
    ComputedBatch(Emission(1, None, 0, 1), COUNTS, {"sink": Changes((FILE,), removes=("old",), replaces=(0, 9))}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_as_it_was(value):
    found = decoded(encoded(value))
    assert found == value
    assert type(found) is type(value)


def test_numbers_of_numpy_and_mappings_of_other_classes_are_plain_ones():
    assert decoded(encoded(Output(refused=np.int64(1 << 62)))) == Output(refused=1 << 62)
    assert decoded(encoded(OrderedDict(a=1))) == {"a": 1}


@pytest.mark.parametrize("error", [TooLargeError("7 rows"), OnlySparkError("a condition"), StateCorruptError("a row differs")])
def test_an_error_comes_with_its_text(error):
    found = decoded(encoded(error))
    assert (type(found), str(found)) == (type(error), str(error))


@pytest.mark.parametrize("value", [object(), b"bytes", 1j, ValueError("not ours"), [object()]])
def test_nothing_else_is_returned(value):
    with pytest.raises(TypeError, match="a task cannot return a"):
        encoded(value)
