"""Where commands print: text or JSON, and errors and progress beside it."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def show(answer: Any, as_json: bool) -> None:
    """Print an answer (:class:`windowmill.jobs.commands.answers.Answer`) as it was asked for."""
    if as_json:
        print(json.dumps(answer.data))
    else:
        console.print(answer.text)
