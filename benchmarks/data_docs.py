"""What rules cost a run beside 1,000 validated batches: ``python -m benchmarks.data_docs``.

Three pipelines read the same source, 1,000 rows a run: one without rules of its own, one whose rules are met, and one of whose rules is
not. The quality table and the Data Docs of each hold the validations of as many batches as asked, and of ten. A run is timed as a process
of its own; the page and the index also by themselves, in this process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from deltalake import write_deltalake

from benchmarks import measurement
from benchmarks.long_life import used_by_children
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Result
from windowmill.checkpoints.places import Places
from windowmill.expectations import gate
from windowmill.expectations.docs import write_docs
from windowmill.expectations.gate import RuleResult, Verdict
from windowmill.expectations.rule import Rule
from windowmill.expectations.suites import rules
from windowmill.windowing.specfile import load_pipeline

START = datetime(2025, 1, 1, tzinfo=UTC)
ROWS, KEYS, FEW = 1_000, 50, 10
_BOUNDED = [
    {"type": "expect_column_values_to_be_between", "column": name, "min_value": 0, "max_value": most, "severity": "warning"}
    for name, most in (("n", ROWS), ("mean", 100), ("greatest", 100), ("least", 100))
]
#: Rules of the spec by what becomes of them.
RULES: dict[str, list[dict[str, Any]]] = {
    "no rules": [],
    "rules met": _BOUNDED,
    "a rule not met": [*_BOUNDED, {**_BOUNDED[1], "max_value": 1}],
}


def deliveries() -> Iterator[pa.Table]:
    """Hours of rows, one after another."""
    random, hour = np.random.default_rng(7), 0
    while True:
        instants = START + timedelta(hours=hour)
        t = pa.array([instants + timedelta(seconds=3 * second) for second in range(ROWS)], pa.timestamp("us", "UTC"))
        yield pa.table({"t": t, "k": random.integers(0, KEYS, ROWS), "v": random.uniform(0, 100, ROWS)})
        hour += 1


@dataclass
class Validated:
    """A pipeline with ``kept`` validated batches before its runs."""

    folder: Path
    source: Path
    name: str
    kept: int

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.spec = self.folder / "pipeline.yaml"
        spec = {
            "pipeline": "data_docs",
            "source": {"path": str(self.source)},
            "sink": {"path": str(self.folder / "sink")},
            "keys": ["k"],
            "time": {"column": "t"},
            "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
            "aggregates": {"n": {"count": "*"}, "mean": {"mean": "v"}, "greatest": {"max": "v"}, "least": {"min": "v"}},
            "expectations": RULES[self.name],
            "compute": "local",
        }
        self.spec.write_text(yaml.safe_dump(spec))
        self.pipeline = load_pipeline(self.spec)
        self.places = Places.of(self.pipeline)
        self.run()
        validations = [self._validated(batch) for batch in range(self.kept)]
        quality = [
            gate.rows_of(found, pipeline="data_docs", generation="earlier", batch=batch, attempt="0", at=START + batch * timedelta(hours=1))
            for batch, found in enumerate(validations)
        ]
        write_deltalake(self.places.quality, pa.concat_tables(quality), mode="append")
        for batch, found in enumerate(validations):
            self.document(found, batch)

    def _validated(self, batch: int) -> Verdict:
        """A verdict in which each tenth batch breaks a rule of the spec, if it has one."""
        results = [_met(rule) for rule in rules(self.pipeline)]
        if batch % 10 or not RULES[self.name]:
            return Verdict("passed", tuple(results))
        results[0] = replace(results[0], outcome="failed", unexpected=3, message=f"3 of {ROWS} rows break the rule")
        return Verdict("warned", tuple(results))

    def document(self, found: Verdict, batch: int) -> float:
        """Write the page of a validation and the index, and return the seconds that it takes."""
        begun = time.perf_counter()
        write_docs(self.places.docs, found, pipeline="data_docs", batch=batch, at=START + batch * timedelta(hours=1), keep=self.kept)
        return time.perf_counter() - begun

    def document_one_more(self) -> float:
        """The seconds that the page of another batch and the index take; it breaks a rule, if there are rules."""
        return self.document(self._validated(10 * self.kept), 10 * self.kept)

    def run(self, *options: str) -> tuple[float, float]:
        """Seconds of a run as a process of its own, and of its processor time."""
        begun, used = time.perf_counter(), used_by_children()
        command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(self.spec), "--json", *options]
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - begun, used_by_children() - used


def _met(rule: Rule) -> RuleResult:
    about = {name: getattr(rule, name) for name in Rule.__dataclass_fields__}
    return RuleResult(**about, outcome="passed", observed=None, elements=ROWS, unexpected=0, message="passed")


def main(arguments: Sequence[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000, help="validated batches (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="counted rounds (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    measured = Measurement(
        "data_docs", "rules and Data Docs", f"runs over {ROWS:,} new rows with {given.batches:,} validated batches behind them"
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder, delivered = Path(scratch).absolute(), deliveries()
        source = folder / "source"
        deliver = partial(write_deltalake, source, mode="append")
        deliver(next(delivered))
        kept = {"": given.batches, f", {FEW} batches": FEW}
        ways = {
            f"{name}{words}": Validated(folder / f"{n}-{count}", source, name, count)
            for n, name in enumerate(RULES)
            for words, count in kept.items()
        }
        results = {label: Result(label) for label in ways}
        for round_ in range(-1, given.repetitions):
            deliver(next(delivered))
            for label, way in ways.items():
                # The pipeline has not written the validations that its quality table begins with.
                seconds, used = way.run(*(() if round_ >= 0 else ("--accept-changes",)))
                if round_ >= 0:
                    results[label].take(round_, seconds, round(used, 4))
        measured.take(list(results.values()))
        for name in RULES:
            few, many = results[f"{name}, {FEW} batches"], results[name]
            added = [after - before for before, after in zip(few.seconds, many.seconds, strict=True)]
            measured.figures.append(Figure(f"{name}: what {given.batches:,} batches add to a run", added, most=1, unit="s"))
        for name in ("rules met", "a rule not met"):
            added = [with_ - without for without, with_ in zip(results["no rules"].seconds, results[name].seconds, strict=True)]
            measured.figures.append(Figure(f"{name}: what the rules add to a run", added, unit="s"))
        pages = ways["a rule not met"]
        taken = [pages.document_one_more() for _ in range(5 * given.repetitions)]
        measured.figures.append(Figure("page and index of a batch that breaks a rule", taken, most=1, unit="s"))
        measured.notes.append(_sizes(pages))
    measured.finish(console, given.results)
    return measured


def _sizes(pages: Validated) -> str:
    docs = Path(pages.places.docs)
    sizes = [page.stat().st_size for page in docs.glob("batch-*.html")]
    index = (docs / "index.html").stat().st_size
    return f"{len(sizes):,} pages of {statistics.median(sizes) / 1e3:.0f} KB each, and an index of {index / 1e3:.0f} KB"


if __name__ == "__main__":
    main()
