"""Report, overview and Data Docs of the same pipelines: they fit every width and paper, and can be read in either light."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.jobs.reporting import START, commit, pipeline_at, publish, result_row
from windowmill.checkpoints.places import Places
from windowmill.expectations.docs import write_docs
from windowmill.expectations.gate import RuleResult, Verdict
from windowmill.jobs.report import write_report
from windowmill.jobs.report.page import row_of, unreadable, write_overview

PAGES = ("report.html", "overview.html", "docs/index.html", "docs/page.html")
#: Contrast of text and background that WCAG 2 asks for at least (level AA).
READABLE = 4.5
_WIDTH = "document.documentElement.scrollWidth"
_CONTRASTS = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return getComputedStyle(document.documentElement).colorScheme === "dark" ? "rgb(18, 18, 18)" : "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.textContent.trim()).join("");
    if (!text || !element.checkVisibility({ visibilityProperty: true }) || element.closest("script, style, .skip")) continue;
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))];
    found.push([(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), text.slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of a pipeline with results and a broken rule, beside one that cannot be read."""
    folder = tmp_path_factory.mktemp("pages")
    pipeline = pipeline_at(folder)
    publish(pipeline, [result_row(START, origin=origin, mean_delay=float(n)) for n, origin in enumerate(("EWR", "JFK", "LGA"))])
    commit(pipeline, 4, verdict="warned")
    places = Places.of(pipeline)
    arguments = {"column": "mean_delay", "max_value": 9}
    about = {"index": 0, "origin": "spec", "type": "expect_column_values_to_be_between", "column": "mean_delay", "arguments": arguments}
    found = {"observed": None, "elements": 9, "unexpected": 2, "message": "2 of 9 rows break the rule"}
    broken = RuleResult(**about, **found, severity="warning", outcome="failed")
    for batch in range(4):
        at = datetime(2013, 2, 1, batch, tzinfo=UTC)
        write_docs(places.docs, Verdict("warned", (broken,)), pipeline="delays", batch=batch, at=at)
    docs = Path(places.docs)
    (docs / "page.html").write_text(next(docs.glob("batch-*.html")).read_text())
    target = f"{places.root}/overview.html"
    write_report(pipeline)
    rows = [row_of(pipeline, "pipelines/delays.yaml", target), unreadable("other", "pipelines/other.yaml", "why")]
    write_overview("pipelines", rows, target)
    return Path(places.root)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_every_width_and_paper(browser: Browser, folder: Path, name: str):
    page = browser.new_page()
    page.goto((folder / name).as_uri())
    for media, widths in (("screen", (390, 1024, 1600)), ("print", (794,))):
        page.emulate_media(media=media)
        for width in widths:
            page.set_viewport_size({"width": width, "height": 900})
            assert settled_width(page) <= width
    page.close()


def settled_width(page: Page) -> int:
    """The width of the page once its charts have followed the window's; it may not evaluate texts, so it is asked again and again."""
    widths = [-1, 0]
    while widths[-1] != widths[-2]:
        page.wait_for_timeout(200)
        widths.append(page.evaluate(_WIDTH))
    return widths[-1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_text_can_be_read(browser: Browser, folder: Path, name: str, scheme: str):
    page = browser.new_page(color_scheme=scheme)
    page.goto((folder / name).as_uri())
    contrasts = page.evaluate(_CONTRASTS)
    page.close()
    assert len(contrasts) > 10
    assert [pair for pair in contrasts if pair[0] < READABLE] == []


def test_a_validation_leads_to_its_batch_in_the_report_and_back(browser: Browser, folder: Path):
    page = browser.new_page()
    page.goto((folder / "docs/index.html").as_uri())
    page.get_by_role("link", name="2", exact=True).first.click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("delays, batch 2")
    page.get_by_role("link", name="Report of the pipeline").click()
    row = page.locator("#batch-2")
    assert row.is_visible(), "the table of batches is folded until a link leads into it"
    row.get_by_role("link", name="passed with warnings").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("delays, batch 2")
    page.close()
