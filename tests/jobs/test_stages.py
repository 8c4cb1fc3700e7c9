"""What the stages ask of Spark, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from windowmill.jobs.schedulers.spark import packed_pass
from windowmill.windowing.columnar.packing import BUCKET, PLACE


class Frame:
    """Notes how it is cut and sorted."""

    def __init__(self) -> None:
        self.cut: tuple[Any, ...] = ()
        self.order: tuple[Any, ...] = ()

    def repartition(self, *by: Any) -> Frame:
        self.cut = by
        return self

    def sortWithinPartitions(self, *by: Any) -> Frame:  # noqa: N802 - Spark's name
        self.order = by
        return self


@pytest.mark.parametrize(("keys", "cut"), [(("k", "l"), (4, f"`{BUCKET}`")), ((), (1,))])
def test_whole_keys_meet_and_their_slices_in_the_order_of_their_places(monkeypatch, keys, cut):
    """First, last and sums of floats depend on the order in which slices meet: it has to be the same in every attempt."""
    monkeypatch.setattr(packed_pass, "F", SimpleNamespace(col=str))
    frame: Any = Frame()
    packed_pass.by_bucket(frame, SimpleNamespace(slices=SimpleNamespace(keys=keys)), 4)  # type: ignore[arg-type]
    assert frame.cut == cut
    assert frame.order == (f"`{BUCKET}`", PLACE)
