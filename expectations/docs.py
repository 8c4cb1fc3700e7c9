"""Writes Data Docs: a page per validation, and an index that begins with what failed; readable without a network.

A page lists the rules with their outcomes. If Great Expectations evaluated some of them, or if one is not met, it also renders a
section with their details. Otherwise it is not imported, which takes over a second.

A validation renders only its own page and the index; a JSON file keeps what failed in the others.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader
from markupsafe import Markup
from pyarrow import fs

from windowmill.expectations.gate import RuleResult, Verdict
from windowmill.expectations.gx import load
from windowmill.expectations.rule import OF_PAST, QUARANTINED_RATE, Rule, describe

_TEMPLATE = "data_docs.html"
#: Greatest number of failing rows on a page; the quality table has more.
_EXAMPLES = 20
#: Greatest number of unmet rules in the index; the pages have all of theirs.
_FAILURES_LISTED = 500
#: Unmet rules of the pages in the order of validation, each with the name of its page under ``page``.
_FAILURES = "failures.json"
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\d{6}Z")
_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
_PAGE = re.compile(r"batch-(?P<batch>\d+)-(?P<at>\d{8}T\d{6}\d{6}Z)-(?P<status>passed|warned|held)\.html")


def write_docs(
    folder: str | os.PathLike[str] | Folder, verdict: Verdict, *, pipeline: str, batch: int, at: datetime, keep: int = 1_000
) -> str:
    """Write the page of a verdict and the index of all pages; returns the path or URI of the index.

    Pages show counts, statistics and the keys of failing rows, never other values of a row. There are at most ``keep``: the oldest are
    removed. ``at`` has a time zone. Raises ``OSError`` or ``pyarrow.ArrowException`` if the ``folder``, which is created if missing, cannot
    be written.
    """
    folder = folder if isinstance(folder, Folder) else Folder(folder)
    instant = at.astimezone(UTC)
    page = f"batch-{batch:08d}-{instant:%Y%m%dT%H%M%S%fZ}-{verdict.status}.html"
    met = len(verdict.results) - len(verdict.unmet)
    has_sections = bool(verdict.unmet) or any(result.evaluated for result in verdict.results)
    template = (_pages_with_sections() if has_sections else _own_pages()).get_template(_TEMPLATE)
    html = template.render(
        title=f"{pipeline}, batch {batch}, {instant:%Y-%m-%d %H:%M:%S} UTC",
        status=verdict.status,
        summary=f"{met} of {len(verdict.results)} rules met.",
        batch=batch,
        rules=[(result, _arguments(result), _statistic(result)) for result in verdict.results],
        sections=_sections(verdict, met, pipeline, batch, instant) if has_sections else [],
        renderer_type="ValidationResultsPageRenderer",
    )
    # Some rules draw charts with scripts from the network; without the network they would show as dead text.
    folder.write(page, _SCRIPT.sub("", html).replace("Sampled Unexpected Values", "Rows that break the rule, by key"))
    return _write_index(folder, pipeline, keep, [{"page": page} | _failure(result) for result in verdict.unmet])


def remove_pages(folder: Folder, pipeline: str, chosen: Callable[[str], bool]) -> int:
    """Remove the pages that ``chosen`` picks by their HTML, and rewrite the index; returns how many."""
    pages = [name for name in folder.names() if _PAGE.fullmatch(name)]
    removed = [name for name in pages if chosen(folder.read(name))]
    for name in removed:
        folder.remove(name)
    if removed:
        _write_index(folder, pipeline, len(pages))
    return len(removed)


def pages_of_batches(folder: Folder) -> dict[int, str]:
    pages = sorted((match["at"], name, int(match["batch"])) for name in folder.names() if (match := _PAGE.fullmatch(name)))
    return {batch: name for _, name, batch in pages}


def _write_index(folder: Folder, pipeline: str, keep: int, failures: Sequence[Mapping[str, Any]] = ()) -> str:
    """Write the index of the newest ``keep`` pages, with the ``failures`` of a new one, and remove older pages; returns its place."""
    names = folder.names()
    # Sort by time, because a held batch may be validated again after later ones.
    pages = sorted((match["at"], name, match) for name in names if (match := _PAGE.fullmatch(name)))
    for _, name, _ in pages[:-keep]:
        folder.remove(name)
    listed = {
        name: {"file": name, "batch": int(match["batch"]), "at": _STAMP.sub(r"\1-\2-\3 \4:\5:\6", stamp), "status": match["status"]}
        for stamp, name, match in reversed(pages[-keep:])
    }
    earlier = []
    if _FAILURES in names:
        # None where their file is cut or damaged, as pages are no reason to stop a run.
        with suppress(ValueError, KeyError, TypeError):
            earlier = [dict(failure, page=failure["page"]) for failure in json.loads(folder.read(_FAILURES))]
    known = [failure for failure in [*earlier, *failures] if failure["page"] in listed]
    if known or earlier:
        folder.write(_FAILURES, json.dumps(known[-_FAILURES_LISTED:], ensure_ascii=False))
    counts = Counter(page["status"] for page in listed.values())
    template = _own_pages().get_template(_TEMPLATE)
    html = template.render(
        title=f"Data Docs of {pipeline}",
        pages=list(listed.values()),
        counts={status: counts[status] for status in ("held", "warned", "passed")},
        failures=[listed[failure["page"]] | failure for failure in reversed(known[-_FAILURES_LISTED:])],
        most=_FAILURES_LISTED,
    )
    return folder.write("index.html", html)


def _failure(result: RuleResult) -> dict[str, Any]:
    named = {name: getattr(result, name) for name in ("type", "column", "severity", "outcome", "message")}
    return named | {"arguments": _arguments(result), "observed": _statistic(result)}


def _arguments(rule: Rule) -> str:
    """The arguments of a rule other than its columns, in one line."""
    texts = []
    for name, value in rule.arguments.items():
        match value:
            case {"operator": "IN", "column": {"name": column}, "parameter": [*values]}:
                texts.append(f"where {column} is {' or '.join(map(str, values))}")
            case _ if name not in ("column", "column_list"):
                texts.append(f"{name}={value}")
    return " ".join(texts)


def _statistic(result: RuleResult) -> float | None:
    """The statistic of the batch that Great Expectations compared; none for rules about rows, whose observations may be values of rows."""
    observed = result.observed
    if result.unexpected is not None or result.type in (QUARANTINED_RATE, *OF_PAST) or isinstance(observed, bool):
        return None
    return float(f"{observed:.6g}") if isinstance(observed, int | float) else None


def _sections(verdict: Verdict, met: int, pipeline: str, batch: int, at: datetime) -> list[Any]:
    gx = load()
    from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer

    share = 100 * met / len(verdict.results) if verdict.results else None
    statistics: dict[str, float | None] = {"evaluated_expectations": len(verdict.results), "successful_expectations": met}
    statistics |= {"unsuccessful_expectations": len(verdict.unmet), "success_percent": share}
    whole = ExpectationSuiteValidationResult(
        success=verdict.status != "held",
        results=[_as_gx(result) for result in verdict.results],
        suite_name=pipeline,
        statistics=statistics,
        meta={"great_expectations_version": gx.__version__, "run_id": {"run_name": f"batch {batch}", "run_time": at.isoformat()}},
    )
    # The first section is an overview; the template has its own.
    sections: list[Any] = ValidationResultsPageRenderer().render(whole).to_json_dict()["sections"]
    return sections[1:]


def _as_gx(result: RuleResult) -> Any:
    """Convert the result to Great Expectations' own form, without values of rows other than their keys."""
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
    from great_expectations.expectations.metadata_types import FailureSeverity

    shown: dict[str, Any] = {}
    if result.type == "expect_table_columns_to_match_ordered_list":
        # The page's renderer orders its sections by this value.
        shown = {"observed_value": [escape(str(name)) for name in result.observed or ()]}
    elif result.elements is not None and result.unexpected is not None:
        percent = 100 * result.unexpected / result.elements if result.elements else 0.0
        # Great Expectations does not escape these.
        named = [escape(", ".join(f"{name}={value}" for name, value in row.items())) for row in result.examples[:_EXAMPLES]]
        shown = {"element_count": result.elements, "unexpected_count": result.unexpected, "unexpected_percent": percent, "missing_count": 0}
        shown |= {"unexpected_percent_total": percent, "partial_unexpected_list": named}
    elif isinstance(result.observed, int | float):
        shown = {"observed_value": result.observed}
    raised = result.outcome == "broken"
    severity = FailureSeverity(result.severity)
    configuration = ExpectationConfiguration(type=result.type, kwargs=dict(result.arguments), severity=severity)
    if result.type in (QUARANTINED_RATE, *OF_PAST):
        # The page's renderers know only the types of Great Expectations; they show a description in place of the type.
        description = describe(result)
        configuration = ExpectationConfiguration(
            type="expect_table_row_count_to_be_between", kwargs={}, severity=severity, description=description
        )
    return ExpectationValidationResult(
        success=result.outcome == "passed",
        expectation_config=configuration,
        result=shown,
        exception_info={"raised_exception": raised, "exception_message": result.message if raised else "", "exception_traceback": ""},
    )


@cache
def _own_pages() -> Environment:
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # A long name may go on in the next line after any of its words.
    environment.filters["breakable"] = lambda name: Markup(str(escape(name)).replace("_", "_<wbr>"))
    return environment


@cache  # compiling its templates takes 0.15 s
def _pages_with_sections() -> Environment:
    load()
    from great_expectations.render.view.view import DefaultJinjaPageView

    environment: Environment = DefaultJinjaPageView().env
    environment.filters["breakable"] = _own_pages().filters["breakable"]
    environment.loader = ChoiceLoader([loader for loader in (_own_pages().loader, environment.loader) if loader is not None])
    return environment


class Folder:
    """A folder of pages: a local one at ``place``, created if missing; or the root of ``files`` in object storage, shown as ``place``."""

    def __init__(self, place: str | os.PathLike[str], files: fs.FileSystem | None = None) -> None:
        self.place = os.fspath(place).rstrip("/")
        if files is None and "://" in self.place:
            raise ValueError(f"{self.place}: a folder in object storage needs the file system that opens it")
        self._files = files

    def write(self, name: str, html: str) -> str:
        """Replace the page ``name``, and return its path or URI. A link stays, and a pipe or device is written to.

        Raises ``OSError`` or ``pyarrow.ArrowException`` if it cannot be written.
        """
        if self._files is not None:
            # A single request to object storage: a reader sees the old page or the new one.
            with self._files.open_output_stream(name) as stream:
                stream.write(html.encode())
            return f"{self.place}/{name}"
        page = Path(self.place or "/", name)
        if page.exists() and not page.is_file() and not page.is_dir():
            page.write_text(html, encoding="utf-8")
            return f"{self.place}/{name}"
        page = page.resolve()
        page.parent.mkdir(parents=True, exist_ok=True)
        # Written to a temporary file and renamed, so that no reader loads half a page.
        part = page.with_name(f".{page.name}.{os.getpid()}")
        try:
            part.write_text(html, encoding="utf-8")
            part.replace(page)
        finally:
            part.unlink(missing_ok=True)
        return f"{self.place}/{name}"

    def read(self, name: str) -> str:
        if self._files is None:
            return Path(self.place, name).read_text(encoding="utf-8")
        with self._files.open_input_stream(name) as stream:
            return str(stream.read().decode())

    def names(self) -> list[str]:
        """Names of the files in the folder; empty if it does not exist."""
        if self._files is None:
            folder = Path(self.place)
            return [path.name for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
        listed = self._files.get_file_info(fs.FileSelector("", allow_not_found=True))
        return [info.base_name for info in listed if info.type == fs.FileType.File]

    def remove(self, name: str) -> None:
        if self._files is None:
            Path(self.place, name).unlink(missing_ok=True)
        elif self._files.get_file_info(name).type == fs.FileType.File:
            self._files.delete_file(name)
