"""Runs commands and SQL in one Spark session: a question a line of its input, an answer a line of its output, both JSON."""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from tests.docs.console import Stage, play
from windowmill.jobs.cli import main
from windowmill.jobs.spark.session import spark_session


def answer(question: dict[str, Any]) -> dict[str, Any]:
    if "sql" in question:
        rows: list[Any] = []
        for statement in question["sql"]:
            rows = spark_session(brief=True).sql(statement).collect()
        return {"rows": [list(row) for row in rows]}
    if "page" in question:
        text = Path(question["page"]).read_text()
        return {"text": play(text, Path(question["folder"]), Stage(compute="auto", sql=spark_session(brief=True).sql))}
    os.environ["WINDOWMILL_COMPUTE"] = question["compute"]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(question["words"])
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    answers = sys.stdout
    sys.stdout = sys.stderr  # what else is printed does not mix with answers
    for line in sys.stdin:
        try:
            told = answer(json.loads(line))
        except Exception:  # noqa: BLE001 - the test that asked is told
            told = {"failed": traceback.format_exc()}
        print(json.dumps(told, default=str), file=answers, flush=True)
