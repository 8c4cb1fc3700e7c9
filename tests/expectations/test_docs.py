"""Data Docs: pages that open without a network and show no more than they may."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from windowmill.expectations.docs import Folder, remove_pages, write_docs
from windowmill.expectations.gate import validate

NOON = datetime(2013, 2, 1, 12, tzinfo=UTC)
BELOW = {"type": "expect_column_values_to_be_between", "column": "delay", "max_value": 3}


def page_of(folder):
    [page] = folder.glob("batch-*.html")
    return page.read_text()


class Fetched(HTMLParser):
    """Collects what a browser would fetch to show the page."""

    def __init__(self, text):
        super().__init__()
        self.addresses = re.findall(r"url\(([^)]*)\)|@import ([^;]*)", text)
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.addresses += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        if tag == "link":
            self.addresses.append(given["href"])
        assert tag != "script"


@pytest.mark.thorough
def test_a_page_names_the_failed_rule_and_its_rows(tmp_path, pipeline, batch):
    index = write_docs(tmp_path, validate(batch(), pipeline(BELOW)), pipeline="delays", batch=7, at=NOON)
    page = page_of(tmp_path)
    assert "delays, batch 7, 2013-02-01 12:00:00 UTC" in page
    assert '<strong class="held">held</strong>' in page
    assert '<td class="failed">failed</td><td>2 of 6 rows break the rule</td>' in page
    assert "values must be less than or equal to" in page
    assert "origin=EWR, window=hourly, window_end=2013-02-01T05:00:00+00:00" in page
    assert index == f"{tmp_path}/index.html"
    assert '<td><a href="batch-00000007-20130201T120000000000Z-held.html">7</a></td>' in Path(index).read_text()


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "expect_column_values_to_be_between", "column": "delay", "max_value": 9},
        BELOW,
        {"type": "expect_column_mean_to_be_between", "column": "delay", "max_value": 1},
        {
            "type": "expect_column_quantile_values_to_be_between",
            "column": "delay",
            "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]},
        },
        {"type": "expect_column_distinct_values_to_be_in_set", "column": "origin", "value_set": ["LGA"]},
        {
            "type": "expect_column_kl_divergence_to_be_less_than",
            "column": "origin",
            "partition_object": {"values": ["EWR"], "weights": [1.0]},
            "threshold": 0.1,
        },
        {"type": "expect_column_values_to_be_between", "column": "missing", "max_value": 9},
        {"type": "expect_column_most_common_value_to_be_in_set", "column": "origin", "value_set": ["LGA"]},
        {"type": "expect_table_columns_to_match_set", "column_set": ["origin"]},
    ],
    ids=lambda rule: rule["type"],
)
def test_pages_fetch_nothing(tmp_path, pipeline, batch, rule):
    write_docs(tmp_path, validate(batch(), pipeline(rule)), pipeline="delays", batch=7, at=NOON)
    for page in (page_of(tmp_path), (tmp_path / "index.html").read_text()):
        assert set(Fetched(page).addresses) == {"data:,"}
        assert "http:" not in page
        assert "https:" not in page


def test_a_broken_rule_is_told_from_a_failed_one(tmp_path, pipeline, batch):
    broken = {"type": "expect_column_values_to_be_between", "column": "missing", "max_value": 9}
    write_docs(tmp_path, validate(batch(), pipeline(broken)), pipeline="delays", batch=7, at=NOON)
    assert '<td class="broken">broken</td>' in page_of(tmp_path)


def test_keys_are_escaped_and_other_values_absent(tmp_path, pipeline, batch):
    rule = {"type": "expect_column_values_to_be_in_set", "column": "delay", "value_set": ["on time"]}
    most = {"type": "expect_column_most_common_value_to_be_in_set", "column": "delay", "value_set": ["on time"]}
    rows = batch(origin=["<img src=x onerror=alert(1)>"] * 6, delay=pa.array(["s3cret"] * 6))
    write_docs(tmp_path, validate(rows, pipeline(rule, most)), pipeline="delays", batch=7, at=NOON)
    page = page_of(tmp_path)
    assert "origin=&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<img" not in page
    assert "s3cret" not in page


def test_only_the_latest_pages_stay(tmp_path, pipeline, batch):
    verdict = validate(batch(), pipeline())
    for number in (1, 2, 3, 1):
        write_docs(tmp_path, verdict, pipeline="delays", batch=number, at=NOON + timedelta(minutes=len(list(tmp_path.iterdir()))), keep=2)
        (tmp_path / "notes.txt").write_text("of the reader's own")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == 4
    assert kept[2:] == ["index.html", "notes.txt"]
    index = (tmp_path / "index.html").read_text()
    assert [name in index for name in kept[:2]] == [True, True]
    assert index.count("<tr><td>") == 2


def test_the_index_begins_with_what_failed(tmp_path, pipeline, batch):
    """The newest first, with the rule, the column, what was observed, and whether the batch was held or warned."""
    warning = {"type": "expect_column_mean_to_be_between", "column": "delay", "max_value": 1, "severity": "warning"}
    for number, rules in enumerate([(BELOW,), (), (warning,)]):
        write_docs(tmp_path, validate(batch(), pipeline(*rules)), pipeline="delays", batch=number, at=NOON + timedelta(hours=number))
    index = (tmp_path / "index.html").read_text()
    failed, _, every = index.replace("<wbr>", "").partition("All validations")
    assert re.findall(r'<span class="verdict \w+">(1 \w+)</span>', failed) == ["1 held", "1 warned", "1 passed"]
    rows = [unescape(re.sub(r"<[^>]+>", " ", row)).split() for row in re.findall(r"<tr><td>(.*)</tr>", failed)]
    outside = "failed : the batch as a whole is outside of {'max_value': 1} observed 2.5"
    assert [" ".join(row) for row in rows] == [
        f"2 2013-02-01 14:00:00 warned expect_column_mean_to_be_between warning · max_value=1 delay {outside}",
        "0 2013-02-01 12:00:00 held expect_column_values_to_be_between critical · max_value=3 delay failed : 2 of 6 rows break the rule",
    ]
    assert every.count("<tr><td>") == 3
    assert 'href="../report.html"' in index


def test_what_failed_goes_with_its_page(tmp_path, pipeline, batch):
    for number in range(3):
        write_docs(tmp_path, validate(batch(), pipeline(BELOW)), pipeline="delays", batch=number, at=NOON + timedelta(hours=number), keep=2)
    listed = (tmp_path / "index.html").read_text().partition("All validations")[0]
    assert re.findall(r'html">(\d)</a>', listed) == ["2", "1"]
    assert remove_pages(Folder(tmp_path), "delays", lambda html: "batch 2" in html) == 1
    listed = (tmp_path / "index.html").read_text().partition("All validations")[0]
    assert re.findall(r'html">(\d)</a>', listed) == ["1"]
    assert "batch-00000002" not in (tmp_path / "failures.json").read_text()


@pytest.mark.parametrize("left", [b"", b'[{"page": "ba', b"\xff{", b'{"page": 1}', b"[1]"])
def test_a_cut_list_of_what_failed_is_begun_anew(tmp_path, pipeline, batch, left):
    for number in range(2):
        write_docs(tmp_path, validate(batch(), pipeline(BELOW)), pipeline="delays", batch=number, at=NOON + timedelta(hours=number))
        if number == 0:
            (tmp_path / "failures.json").write_bytes(left)
    assert [failure["page"][:14] for failure in json.loads((tmp_path / "failures.json").read_text())] == ["batch-00000001"]


def test_a_page_links_to_its_batch_in_the_report(tmp_path, pipeline, batch):
    for number, (rules, target) in enumerate([((BELOW,), "held"), ((), "batch-1")]):
        folder = tmp_path / target
        write_docs(folder, validate(batch(), pipeline(*rules)), pipeline="delays", batch=number, at=NOON)
        assert f'<a href="../report.html#{target}">' in page_of(folder)


def test_an_empty_batch_has_a_page(tmp_path, pipeline, batch):
    write_docs(tmp_path, validate(batch(0), pipeline(BELOW)), pipeline="delays", batch=7, at=NOON)
    assert "no rows in this batch" in page_of(tmp_path)


def test_pages_on_object_storage(tmp_path, monkeypatch, pipeline, batch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bucket" / "docs").mkdir(parents=True)
    folder = Folder("s3://bucket/docs", fs.SubTreeFileSystem(str(tmp_path / "bucket" / "docs"), fs.LocalFileSystem()))
    verdict = validate(batch(), pipeline())
    for number in range(3):
        index = write_docs(folder, verdict, pipeline="delays", batch=number, at=NOON + timedelta(minutes=number), keep=2)
    assert index == "s3://bucket/docs/index.html"
    kept = sorted(path.name for path in (tmp_path / "bucket" / "docs").iterdir())
    assert [name[:14] for name in kept] == ["batch-00000001", "batch-00000002", "index.html"]
    assert not (tmp_path / "s3:").exists()


def test_great_expectations_is_imported_for_no_page_of_rules_that_it_did_not_evaluate(tmp_path):
    code = """
import sys
from datetime import UTC, datetime
from windowmill.expectations.docs import write_docs
from windowmill.expectations.gate import RuleResult, Verdict

about = {"type": "comparison", "column": {"name": "window"}, "operator": "IN", "parameter": ["hourly", "<daily>"]}
arguments = {"column": "x", "min_value": "<0>", "row_condition": about}
rule = dict(index=0, origin="spec", type="expect_column_values_to_be_between", column="x", arguments=arguments)
result = RuleResult(**rule, severity="critical", outcome="passed", observed=None, elements=3, unexpected=0, message="passed")
write_docs(sys.argv[1], Verdict("passed", (result,)), pipeline="p", batch=7, at=datetime(2013, 2, 1, 12, tzinfo=UTC))
assert "great_expectations" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    page = page_of(tmp_path)
    assert "expect_column_values_to_be_between min_value=&lt;0&gt; where window is hourly or &lt;daily&gt;<" in page
    assert '<td class="passed">passed</td>' in page
    assert "1 of 1 rules met." in page
    assert set(Fetched(page).addresses) == {"data:,"}
