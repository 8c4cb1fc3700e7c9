"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The pipeline's YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Continue although others have changed rows of the sink, quarantine or quality table.")
]
AcceptCode = Annotated[
    bool,
    typer.Option("--accept-code", help="Continue although a module that the spec names was edited; you vouch that it computes the same."),
]
Arrival = Annotated[
    Literal["log", "event_time"],
    typer.Option(
        "--arrival",
        help="Order in which historical rows count as arrived: log order, in which rows can be late, or event-time order.",
    ),
]
Last = Annotated[int, typer.Option("--last", min=1, help="How many to show, newest last.")]
