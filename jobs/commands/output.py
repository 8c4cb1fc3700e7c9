"""Where commands print: text or JSON, and errors and progress beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from windowmill.jobs.commands.answers import Answer

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def show(answer: Answer, as_json: bool) -> None:
    """Print ``answer`` as it was asked for."""
    if as_json:
        print(json.dumps(answer.data))
    else:
        console.print(answer.text)
