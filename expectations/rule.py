"""A rule: one expectation over the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Origin = Literal["spec", "always"]
Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One expectation over the rows of a batch.

    Attributes
    ----------
    index
        Position in the suite; for a rule of the spec, also its position under ``expectations``.
    origin
        ``spec``, or ``always`` for rules that every pipeline has.
    type
        Its snake_case name in Great Expectations.
    column
        Columns that it checks, separated by commas; ``None`` for rules about the whole batch.
    arguments
        Arguments by their names in Great Expectations, including columns.
    severity
        ``critical`` holds the batch, ``warning`` flags it, ``info`` is recorded.
    """

    index: int
    origin: Origin
    type: str
    column: str | None
    arguments: Mapping[str, Any]
    severity: Severity
