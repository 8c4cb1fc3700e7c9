"""Computes the aggregates of a spec over windows: numeric partials by the kernels, Python objects one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.objects import ObjectColumn
from windowmill.windowing.columnar.results import Column
from windowmill.windowing.columnar.slice_partials import combine_numbers
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column, float64_of, int64_of, lift, valid_of
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.kernels.two_stacks import clipped_means, flips_of
from windowmill.windowing.slicing.leaves import Leaves, Windows
from windowmill.windowing.spec import Pipeline


class Aggregation:
    """The aggregates of a pipeline over columns of given types."""

    def __init__(self, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> None:
        aggregates = pipeline.aggregates
        self.names = list(aggregates)
        self.layout = Layout.over_rows(aggregates, types, f"pipeline {pipeline.pipeline}: aggregates")
        self.clipped = {name: spec for name, spec in aggregates.items() if spec.declaration.partial == "none"}
        objects = {name: spec for name, spec in aggregates.items() if spec.declaration.partial == "objects"}
        self.objects = {name: ObjectColumn(spec, [types[column] for column in spec.columns]) for name, spec in objects.items()}

    def over(self, leaves: Leaves) -> LeafPartials:
        """Lift ``leaves``, once for all windows of a batch; O(n) in leaves."""
        objects = {name: column.lift(leaves) for name, column in self.objects.items()}
        return LeafPartials(self, leaves, *lift(self.layout, leaves.table), objects)


@dataclass(frozen=True)
class LeafPartials:
    """Leaves with their partials."""

    aggregation: Aggregation
    leaves: Leaves
    ints: Ints
    floats: Floats
    objects: Mapping[str, Sequence[Any]]

    def combine(self, windows: Windows) -> tuple[dict[str, Column], Ints]:
        """Compute all aggregates of each window; also returns the flips of :func:`~windowmill.windowing.kernels.two_stacks.flips_of`."""
        aggregation, layout = self.aggregation, self.aggregation.layout
        found: dict[str, Column] = dict(lower(layout, *combine_numbers(layout, self.ints, self.floats, windows), self.leaves.table))
        found |= {name: self._clipped(spec, windows) for name, spec in aggregation.clipped.items()}
        found |= {name: column.compute(self.objects[name], windows) for name, column in aggregation.objects.items()}
        flips = flips_of(windows.group_offsets, windows.lo, windows.hi, windows.middles)
        return {name: found[name] for name in aggregation.names}, flips

    def _clipped(self, spec: AggregateSpec, windows: Windows) -> pa.Array:
        table, leaves = self.leaves.table, self.leaves
        column = table.column(spec.columns[0]).combine_chunks()
        counted: Bools = valid_of(column)
        if spec.where is not None:
            counted = counted & (int64_of(table.column(condition_column(spec.where)).combine_chunks()) != 0)
        means, missing = clipped_means(
            float64_of(column),
            counted,
            leaves.time,
            leaves.stop,
            windows.start,
            windows.end,
            windows.sequence,
            windows.lo,
            windows.hi,
            windows.member_offsets,
            windows.members,
        )
        return pa.array(means, mask=missing)
