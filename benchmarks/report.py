"""docs/benchmarks.md and its plot from the latest records: ``.venv-bench/peers/bin/python -m benchmarks.report``."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.race import ROOT, cpu_of, seconds_of

PAGE, PLOT = ROOT / "docs/benchmarks.md", ROOT / "docs/images/benchmarks.svg"
#: Order of the benchmarks in the page.
ORDER = (
    "job",
    "hopping",
    "overlap",
    "tuples",
    "incremental",
    "small_runs",
    "warm_runs",
    "cost",
    "positions",
    "deltas",
    "state_bytes",
    "around_windows",
    "chains",
    "keeping_current",
    "history",
    "corrections",
    "long_life",
    "data_docs",
    "report_page",
    "nodes",
    "memory",
    "many_keys",
    "nexmark",
    "nexmark_current",
    "dag_parsing",
    "minute_schedules",
)
HEAD = """# Benchmarks

`make bench` measures everything on this page again (about an hour on two cores) and writes it anew; `make bench-setup` alone installs the
peers. Every figure is taken in one run: the ways to do a task take turns, each engine in a process of its own and warm, and ratios
pair the rounds. A first round, not counted, writes all result rows, which are compared: counts and extremes exactly, floats to 1e-9 (to
1e-6 of the greatest value for the standard deviation of engines that take it from sums of squares: DuckDB's by hand, Flink's). What
takes less than 10 seconds also runs for 10 seconds uncounted before each of its rounds: Spark ends Python workers that have waited for a
minute, and the compilers of JVMs want several runs.

The job comes first: from a Delta table that Spark wrote with its defaults into another Delta table, as users run it. What follows
measures `aggregate` on DataFrames, and parts of the work. Reading the input is in every time, starting a process or a JVM only in those
that say *cold*, and of runs as processes of their own. Except in the job, results go to `noop` (Spark), `blackhole` (Flink), sums
(DuckDB) or memory (polars). A section on `aggregate` that does not name the form of its files read Parquet with
microsecond instants, which Spark writes only if it is told to. A section on runs that does not say who computed them was measured with
`compute: auto`: small batches in the process of the command.
A cold run pays for its start: about 4 s of processor time in the JVM (session, first job), 1 s of imports in the command (1.9 s
more where a rule needs Great Expectations), 1.5 s in the daemon of Python workers and 3.3 s in two workers. On two cores that is most
of its seconds, and more than a cold script of DuckDB takes in all; a warm session pays none of it.
Processor time is that of all threads and processes together: on a busy machine it says more than the seconds do.
DuckDB and polars work in one process without shuffle, executors or rows handed from one to another: they show the limit of the machine.
Spark's ways run on the session that windowmill configures: two threads, 4 GiB, two shuffle partitions, adaptive execution.
Structured Streaming keeps its state in RocksDB; Flink has a parallelism of 2, object reuse, 1 GiB of managed memory.
"""
PICTURE = "\n![Seconds by way](images/benchmarks.svg)\n"
DRAWN = ("hopping", "tuples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results.jsonl", help="records (default %(default)s)")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write (default %(default)s)")
    parser.add_argument("--plot", type=Path, default=PLOT, help="plot to write (default %(default)s)")
    given = parser.parse_args()
    records = latest(given.results)
    drawn = [record for record in records if record["name"] in DRAWN]
    if drawn:
        draw(drawn, given.plot)
    given.page.write_text(page(records))
    print(f"{given.page}: {len(records)} measurements, {len(drawn)} of them drawn in {given.plot}")


def latest(path: Path) -> list[dict[str, Any]]:
    """The last record of each benchmark and workload, in the order of the page."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        found[record["name"], record["workload"]] = record
    return sorted(found.values(), key=lambda record: ORDER.index(record["name"]))


def page(records: list[dict[str, Any]]) -> str:
    """The page in Markdown."""
    picture = PICTURE if any(record["name"] in DRAWN for record in records) else ""
    return HEAD + picture + "".join(map(section, records))


def section(record: dict[str, Any]) -> str:
    """A measurement as Markdown."""
    machine, load = record["machine"], record["load"]
    lines = [f"\n## {record['title'].capitalize()}\n", f"{record['workload'].capitalize()}.\n"]
    if record["results"]:
        lines += ["| | seconds: median (least to greatest) | of processor time | rounds |", "|---|---|---|---|"]
    lines += [f"| {r['label']} | {seconds_of(r)} | {cpu_of(r)} | {len(r.get('seconds', []))} |" for r in record["results"]]
    lines += ["", "| figure, round by round | median (least to greatest) | to be reached | |", "|---|---|---|---|"]
    verdicts = {True: "reached", False: "not reached", None: ""}
    lines += [f"| {f['name']} | {f['value']} | {f['goal']} | {verdicts[f['reached']]} |" for f in record["figures"]]
    lines += ["", *(f"- {note}" for note in record["notes"]), ""]
    lines += [
        f"`{record['command']}` at commit {record['commit']}, {record['taken'][:10]}, "
        f"{machine['cores']} cores of {machine['processor']}, {machine['memory_gib']} GiB; "
        f"load average {load[0]:.1f} before and {load[-1]:.1f} after. "
        + ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        + ".\n"
    ]
    return "\n".join(lines)


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """Median seconds of each way as bars on a logarithmic axis, from least to greatest as whiskers; a workload each."""
    from matplotlib import pyplot as plt  # only the peers' environment has it

    figure, axes = plt.subplots(len(records), 1, figsize=(9, 1 + sum(0.45 * len(r["results"]) + 0.9 for r in records)), squeeze=False)
    for axis, record in zip(axes[:, 0], records, strict=True):
        taken = [result for result in record["results"] if result.get("seconds") or "over" in result]
        for place, result in enumerate(reversed(taken)):
            seconds = result.get("seconds") or [result["over"]]
            median = statistics.median(seconds)
            colour = "#1f6f8b" if result["label"] == "windowmill" else "#b8b8b8"
            whiskers = [[median - min(seconds)], [max(seconds) - median]]
            axis.barh(place, median, color=colour, xerr=whiskers, ecolor="#555555", height=0.7)
            axis.text(max(seconds) * 1.05, place, f"{'> ' if 'over' in result else ''}{median:.3g} s", va="center", fontsize=9)
        axis.set_yticks(range(len(taken)), [result["label"] for result in reversed(taken)])
        axis.set_xscale("log")
        axis.set_xlim(right=axis.get_xlim()[1] * 2)
        axis.set_title(f"{record['title']}:\n{record['workload']}", fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("seconds, median; logarithmic")
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "windowmill"  # the same picture from the same records
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
