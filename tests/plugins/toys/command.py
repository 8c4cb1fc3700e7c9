"""A command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windowmill import load_pipeline
from windowmill.plugins import register_command


@register_command("keys")
def keys(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="The pipeline's YAML file.")],
    separator: Annotated[str, typer.Option("--separator", help="Between two keys.")] = ", ",
) -> int:
    """Print the keys of a pipeline; 4 if it has none."""
    found = load_pipeline(spec).keys
    print(separator.join(found))
    return 0 if found else 4
