"""The report in Debian's Chromium: search, readings, zoom, dark mode, widths and print; and how large a page of many rows is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from benchmarks.report_page import published
from tests.browser.chromium import opened
from windowmill.jobs.report import write_report

WIDTHS = (390, 1024, 1600)


def written(folder: Path, keys: int, rows: int, outlier: float = 0.0) -> Path:
    """The report on ``rows`` results of as many ``keys``.

    K000 has the greatest volume, and in each window one delay of ``outlier``; the last key's flights are constant.
    """
    n = rows // (2 * keys)
    key, step = np.divmod(np.arange(keys * n), n)
    delay = np.round(30 * np.sin(step / 12 + key) + key % 50, 2)
    delay[0] = outlier
    flights = np.where(key == keys - 1, 1, 10 * (keys - key) + step % 7)
    rule = {"type": "expect_column_values_to_be_between", "column": "mean_delay", "max_value": 90, "severity": "warning"}
    pipeline = published(folder, key, step, flights, delay, expectations=[rule])
    return Path(write_report(pipeline))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report"), keys=40, rows=40 * 2 * 400)


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """The report at 1,024 pixels; a request to the network, or an error of a script, fails the test."""
    page = opened(browser)
    wrong: list[str] = []
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(report.as_uri())
    page.wait_for_selector(".overview canvas")
    yield page
    page.close()
    assert wrong == []


def names(page: Page) -> list[str]:
    """Keys of the small panels, in order."""
    return [text[:4] for text in page.locator(".tab:visible .small .name").all_inner_texts()]


def chips(page: Page) -> list[str]:
    return page.locator(".tab:visible .keys button").all_inner_texts()


def span(page: Page) -> str:
    return page.locator(".tab:visible .controls .span").inner_text()


def test_keys_are_ranked_searched_and_drawn(page):
    assert chips(page) == [f"K{k:03}" for k in range(6)]
    assert names(page)[:3] == ["K000", "K001", "K002"]
    page.get_by_role("button", name="highest value").first.click()
    assert chips(page)[0] != "K000"
    search = page.get_by_role("searchbox", name="Search keys").first
    search.fill("k03")
    assert sorted(names(page)) == [f"K{k:03}" for k in range(30, 40)]
    assert "10 of 40 keys match." in page.locator(".told").first.inner_text()
    search.fill("K021")
    search.press("Enter")
    assert chips(page)[-1] == "K021"
    page.locator(".small").first.click()
    assert "K021" not in chips(page)


def test_constant_series_are_a_line_of_text(page):
    page.locator(".finder").get_by_role("button", name="flights").first.click()
    page.get_by_role("searchbox").first.fill("K039")
    assert names(page) == []
    assert "Constant: K039 = 1." in page.locator(".told").first.inner_text()


def test_a_panel_beyond_the_shared_scale_is_marked(browser, tmp_path):
    """One value must not flatten every other panel, nor be hidden."""
    page = opened(browser)
    page.goto(written(tmp_path, keys=40, rows=40 * 2 * 100, outlier=5_000.0).as_uri())
    page.wait_for_selector(".overview canvas")
    told = page.locator(".told").first
    assert "1 goes beyond it, marked with the farthest value." in told.inner_text()
    assert page.locator(".tab:visible .small.beyond .name").inner_text().split() == ["K000", "↑", "5K"]
    plot = page.locator(".overview .u-over").first
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 50, steps=5)
    page.mouse.up()
    page.wait_for_selector(".small.beyond", state="detached")
    assert "beyond" not in told.inner_text(), "the scale is that of what is shown"
    plot.dblclick(position={"x": 150, "y": 60})
    page.wait_for_selector(".small.beyond")
    page.get_by_text("one scale for all").first.click()
    assert "Each panel has its own scale" in told.inner_text()
    assert page.locator(".small.beyond").count() == 0
    page.close()


def test_the_stretch_that_is_shown_first_has_panels_of_its_own_keys(browser, tmp_path):
    """Where keys come and go, those of the greatest volume have no row in it."""
    step = np.arange(1_200)
    key = step // 20
    pipeline = published(tmp_path, key, step, 2_000 - step, np.sin(step) * 30)
    page = opened(browser)
    page.goto(Path(write_report(pipeline)).as_uri())
    page.wait_for_selector(".overview canvas")
    shown = names(page)
    assert len(shown) >= 4
    assert all(int(name[1:]) >= (1_200 - 97) // 20 for name in [*shown, *chips(page)[:4]])
    assert re.search(r"\d+ have no values in this stretch\.", page.locator(".told").first.inner_text())
    page.get_by_role("button", name="All", exact=True).first.click()
    page.wait_for_function("document.querySelectorAll('.tab .small').length > 12")
    assert chips(page)[0] == "K000"
    page.close()


def test_a_long_key_leaves_room_for_its_value(page):
    page.set_viewport_size({"width": 390, "height": 900})
    page.wait_for_selector(".small .name b")
    cut = page.evaluate(
        """() => [...document.querySelectorAll(".small .name")].filter((name) => {
            name.firstChild.textContent = "a key with a very long name";
            const value = name.querySelector("b");
            return value.scrollWidth > value.clientWidth || value.getBoundingClientRect().right > name.getBoundingClientRect().right + 1;
        }).length"""
    )
    assert cut == 0


def test_readings_follow_the_pointer(page):
    plot = page.locator(".overview .u-over").first
    plot.hover(position={"x": 200, "y": 60})
    tip = page.locator(".overview .tip:visible")
    assert tip.count() == 1, "in the chart under the pointer alone"
    lines = tip.inner_text().splitlines()
    assert re.fullmatch(r"\d+ Feb 2026, \d\d:00", lines[0])
    assert {line for line in lines if line.startswith("K")} == {f"K{k:03}" for k in range(6)}
    values = [float(line.replace("−", "-")) for line in lines[1:] if not line.startswith("K")]
    assert values == sorted(values, reverse=True)


def test_dragging_zooms_every_chart_and_a_double_click_resets(page):
    whole = span(page)
    assert whole.endswith("1 Mar 2026, 00:00 UTC")
    plot = page.locator(".overview .u-over").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 50, steps=5)
    page.mouse.up()
    assert span(page) != whole
    assert page.get_by_role("button", name="Reset zoom").first.is_visible()
    plot.dblclick(position={"x": 150, "y": 60})
    assert span(page) == whole
    page.get_by_role("button", name="All", exact=True).first.click()
    assert span(page) != whole


@pytest.mark.parametrize("width", WIDTHS)
def test_search_readings_and_zoom_work_at_every_width(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    search = page.get_by_role("searchbox", name="Search keys").first
    search.fill("K021")
    search.press("Enter")
    assert chips(page)[-1] == "K021"
    plot = page.locator(".overview .u-over").first
    box = plot.bounding_box()
    for share in (0.1, 0.9):
        plot.hover(position={"x": share * box["width"], "y": 60})
        tip = page.locator(".overview .tip:visible").bounding_box()
        assert tip["x"] >= 0
        assert tip["x"] + tip["width"] <= width
    whole = span(page)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50, steps=5)
    page.mouse.up()
    assert span(page) != whole


def test_a_worst_value_opens_its_chart(page):
    link = page.locator(".tab:visible .worst a").first
    name = link.inner_text()
    assert name not in chips(page)
    link.click()
    assert name in chips(page)


def test_each_window_has_its_charts(page):
    page.locator(".tabs > label", has_text="day").click()
    page.wait_for_selector("#charts-1 .overview canvas")
    assert page.evaluate("scrollY") == 0, "the page stays where it was"
    assert "1 day every 1 hour" in page.locator(".tabs").inner_text()


def test_dark_mode_repaints_the_charts(page):
    """Colours of a canvas come from the page's variables."""

    def ink() -> float:
        return page.evaluate(
            """() => {
              const canvas = document.querySelector(".overview canvas");
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              let [sum, seen] = [0, 0];
              for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) { sum += data[i] + data[i + 1] + data[i + 2]; seen += 1; }
              return Math.round(sum / seen);
            }"""
        )

    light, background = ink(), page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark", exact=True).click()
    assert page.get_by_role("button", name="Light", exact=True).is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    assert ink() != light


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(page, width):
    page.set_viewport_size({"width": width, "height": 900})
    fits = "[...document.querySelectorAll('.overview .area')].every((area) => area.firstChild.clientWidth <= area.clientWidth + 1)"
    # Playwright's own waiting for a function evaluates a text, which the page's content security policy forbids.
    for _ in range(100):
        if page.evaluate(fits):
            break
        page.wait_for_timeout(50)
    assert page.evaluate(fits)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_print_shows_every_window(page):
    assert page.locator("#charts-1 canvas").count() == 0
    assert len(page.pdf()) > 10_000
    assert page.locator("#charts-1 canvas").count() > 0
    assert page.locator(".small").count() == page.locator(".small canvas").count() > 0, "of panels below the fold, too"


def test_print_is_light_and_without_controls(page):
    page.set_viewport_size({"width": 794, "height": 1123})
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".controls:visible, .tabs > label:visible, #theme:visible").count() == 0
    assert page.locator(".print-title:visible").all_inner_texts() == ["hourly every 1 hour", "day 1 day every 1 hour"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 794


@pytest.mark.thorough
@pytest.mark.parametrize(("keys", "rows", "most"), [(228, 228 * 2 * 700, 2_000_000), (1_000, 1_000_000, 5_000_000)], ids=str)
def test_large_reports_stay_small_and_open(browser, tmp_path, keys, rows, most):
    report = written(tmp_path, keys, rows)
    assert report.stat().st_size <= most
    page = opened(browser)
    page.goto(report.as_uri())
    page.wait_for_selector(".overview canvas")
    told = page.locator(".told").first.inner_text()
    page.close()
    assert "All panels" in told
