"""What no retry can mend ends with exit code 2, and ``status`` says so beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.checkpoints.records import NOW, commit
from tests.specs import SECONDS, TENS, a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs import cli
from windowmill.jobs.batch.planning import next_run
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing import errors
from windowmill.windowing.settings import COMPUTE
from windowmill.windowing.specfile import load_pipeline

#: What retries may mend: storage that comes back, a machine, another run that ends; and a batch that somebody has to look at.
RETRIED = {
    "WindowmillError", "MachineError", "ServerGoneError", "SourceError", "SourceMissingError", "LedgerError", "LedgerCorruptError",
    "LedgerBehindError", "FencedError", "LeaseTakenError", "StateError", "StateMissingError", "StateCorruptError", "StorageFullError",
    "SinkError",
}  # fmt: skip
BOUNDED = {"type": "expect_column_values_to_be_between", "column": "low", "max_value": 9}
CLASSES = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, errors.WindowmillError)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_exit_code_of_an_error_says_whether_a_retry_may_mend_it(kind):
    expected = 1 if kind.__name__ in RETRIED else 3 if kind is errors.HeldError else 2
    assert kind.exit_code == expected
    assert issubclass(kind, errors.RefusedError) == (expected == 2)


class Bench:
    """A pipeline over two rows whose first batch, unless it ``is_new``, has been committed without having been carried out."""

    def __init__(self, folder: Path, *, is_new: bool = False, **fields: Any) -> None:
        self.folder, self.spec = folder, folder / "p.yaml"
        self.fields: dict[str, Any] = a_spec(folder, keys=["k"], time=SECONDS, windows=[TENS], aggregates={"low": {"min": "v"}})
        self.write(**fields)
        self.land(1, 2)
        if not is_new:
            plan = next_run(runnable_of(load_pipeline(self.spec)), self.ledger)
            assert plan is not None
            self.ledger.record(plan, commit(), {}, NOW)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(load_pipeline(self.spec))

    def write(self, **changes: Any) -> None:
        """Write the spec with ``changes``; its source stays where it is."""
        self.spec.write_text(yaml.safe_dump(self.fields | changes | {"source": self.fields["source"] | changes.get("source", {})}))

    def land(self, *times: int, without: str | None = None, **options: Any) -> None:
        rows = pa.table({"t": pa.array(times, pa.int64()), "v": pa.array(times, pa.int64()), "k": ["a"] * len(times)})
        rows = rows if without is None else rows.drop_columns([without])
        write_deltalake(str(self.folder / "source"), rows, **{"mode": "append"} | options)

    def status(self, capsys: Any) -> dict[str, Any]:
        capsys.readouterr()
        assert cli.main(["status", str(self.spec), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def text(self, capsys: Any) -> str:
        capsys.readouterr()
        assert cli.main(["status", str(self.spec)]) == 0
        return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


def update(bench: Bench) -> None:
    DeltaTable(str(bench.folder / "source")).update(updates={"v": "v + 1"})


def changed_spec(bench: Bench) -> None:
    bench.land(3)
    bench.write(time={"column": "t", "unit": "s", "disorder": 5})


def missing_column(bench: Bench) -> None:
    bench.land(3, without="v", mode="overwrite", schema_mode="overwrite")
    bench.write(source={"changes": "ignore"})


def replaced_source(bench: Bench) -> None:
    (bench.folder / "source").rename(bench.folder / "old")
    bench.land(1)


def unknown_option(bench: Bench) -> None:
    bench.write(source={"options": {"maxFilesPerTrigger": "many"}})
    bench.land(3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (changed_spec, "time.disorder was not given and is 5"),
        (missing_column, "column 'v' is gone since the last batch"),
        (replaced_source, "this is another table"),
        (update, "version 1 (UPDATE) changed or removed rows"),
        (unknown_option, "source.options.maxFilesPerTrigger: got 'many'"),
    ],
)
def test_what_a_run_refuses_is_said_before_by_status(bench, capsys, change, says):
    before = bench.status(capsys)
    assert (before["next_run_error"], before["next_run_exit_code"]) == (None, None)
    change(bench)
    records = bench.ledger.count
    status = bench.status(capsys)
    assert says in status["next_run_error"]
    assert status["next_run_exit_code"] == 2
    assert f"next run would end with exit code 2: {status['next_run_error']}"[:60] in bench.text(capsys)
    assert cli.main(["run", str(bench.spec)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert says in told
    assert bench.ledger.count == records


def test_status_says_beforehand_what_is_too_large_for_local(bench, capsys, monkeypatch):
    monkeypatch.setenv(COMPUTE.name, "local")
    monkeypatch.setattr("windowmill.jobs.layouts.limits.MAX_FILES", 1)
    for time in (3, 4):
        bench.land(time)
    status = bench.status(capsys)
    assert status["next_run_exit_code"] == 2
    assert "2 new files, and one process takes at most 1 (source.options.maxFilesPerTrigger makes" in status["next_run_error"]
    assert cli.main(["run", str(bench.spec)]) == 2
    assert status["next_run_error"] in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("least", "rules", "code", "says"),
    [
        (
            *(1.0, [{"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch} WHERE low > 9"}], 2),
            "batch 0: only Spark evaluates expectations.1 (unexpected_rows_expectation); compute is local",
        ),
        (float("nan"), [], 3, "expect_column_values_to_be_between(low) failed [critical]: 1 of 1 rows break the rule"),
    ],
    ids=["a rule in SQL", "NaN breaks an upper bound"],
)
def test_a_batch_that_rules_do_not_pass_is_told(tmp_path, capsys, monkeypatch, least, rules, code, says):
    monkeypatch.setenv(COMPUTE.name, "local")
    bench = Bench(tmp_path, is_new=True, expectations=[BOUNDED, *rules])
    write_deltalake(
        str(tmp_path / "source"), pa.table({"t": [3, 25], "v": [least, 2.0], "k": ["a", "a"]}), mode="overwrite", schema_mode="overwrite"
    )
    assert cli.main(["run", str(bench.spec)]) == code
    assert says in " ".join(capsys.readouterr().err.split())


def test_status_says_which_waiting_versions_change_rows(bench, capsys):
    bench.land(3)
    bench.land(4)
    status = bench.status(capsys)
    assert (status["versions_waiting"], status["versions_changing"], status["next_run_error"]) == (2, [], None)
    assert "versions waiting 2 next run –" in bench.text(capsys)
    update(bench)
    status = bench.status(capsys)
    assert (status["versions_waiting"], status["versions_changing"]) == (3, [{"version": 3, "operation": "UPDATE"}])
    assert "versions waiting 3, of which version 3 is an UPDATE" in bench.text(capsys)
    DeltaTable(str(bench.folder / "source")).delete("v = 2")
    assert "versions waiting 4, of which versions 3 (UPDATE), 4 (DELETE) change rows" in bench.text(capsys)
    bench.write(source={"changes": "ignore"})
    assert bench.status(capsys)["next_run_error"] is None


def test_status_leaves_a_failure_that_a_retry_may_mend_to_the_retry(bench, capsys):
    (bench.folder / "source").rename(bench.folder / "away")
    status = bench.status(capsys)
    assert (status["next_run_exit_code"], status["versions_waiting"]) == (1, None)
    assert "there is no Delta table" in status["next_run_error"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"keys": ["gate"]}, "has no column 'gate'"),
        ({"aggregates": {"low": {"min": "v", "where": "w > 1"}}}, "aggregates.low.where: the source"),
        # Spark takes these for functions where no column has the name: the user that runs, and the clock.
        ({"aggregates": {"low": {"min": "v", "where": "user = 'root'"}}}, "has no column 'user'"),
        ({"aggregates": {"low": {"min": "v", "where": "current_time > k"}}}, "has no column 'current_time'"),
        ({"source": {"filter": "V > 1 and nested.v > 1"}}, "source.filter: the source"),
        ({"windows": [{"name": "w", "type": "tumbling", "evict": {"punctuation": "stop"}}]}, "has no column 'stop'"),
    ],
)
def test_a_column_that_is_not_there_is_refused_before_a_first_batch_is_planned(tmp_path, capsys, fields, says):
    bench = Bench(tmp_path, is_new=True, **fields)
    status = bench.status(capsys)
    assert says in status["next_run_error"]
    assert (status["versions_waiting"], status["next_run_exit_code"]) == (1, 2)
    assert not (tmp_path / "sink.windowmill").exists()
    assert cli.main(["run", str(bench.spec)]) == 2
    assert not bench.ledger.count


def pipeline_of(folder: Path, name: str, **fields: Any) -> str:
    """A pipeline in this process; its source and sink are named as the first one's unless given."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(a_spec(folder, pipeline=name, keys=["k"], compute="local", windows=[TENS], time=SECONDS) | fields))
    return str(path)


def pipeline_over(folder: Path, results: str, **fields: Any) -> str:
    """A pipeline over the ``results`` in this folder."""
    places = {"source": {"path": str(folder / results)} | fields.pop("source", {}), "sink": {"path": str(folder / f"over-{results}")}}
    return pipeline_of(folder, f"over_{results}", time={"column": "window_end", "unit": "s"}, **places, **fields)


TWO = [TENS, TENS | {"name": "z", "size": 20}]


@pytest.mark.parametrize(
    ("first", "filter_", "says"),
    [
        ({}, None, None),
        ({"windows": TWO}, None, "has rows of the windows w, z, all of which would count: name its spec by source.pipeline"),
        ({"windows": TWO}, "window_end > 0", "source.filter, such as \"window = 'w'\""),
        ({"windows": TWO}, "n > 0 and `window` = 'w'", None),
        ({"emit": "revise"}, None, "has rows of revisions, each of which would count: name its spec by source.pipeline"),
        ({"emit": "revise"}, "window = 'w'", "revisions"),
    ],
)
def test_results_of_several_windows_or_revisions_are_no_events(tmp_path, capsys, first, filter_, says):
    upper = pipeline_of(tmp_path, "upper", **first)
    write_deltalake(str(tmp_path / "source"), pa.table({"t": [1, 12, 99], "k": ["a", "b", "a"]}))
    assert cli.main(["run", upper]) == 0
    lower = pipeline_over(tmp_path, "sink", source={"filter": filter_} if filter_ else {}, aggregates={"s": {"sum": "n"}})
    DeltaTable(str(tmp_path / "sink")).optimize.compact()
    for command in (["validate", lower, "--source"], ["backfill", lower, "--from", "0", "--to", "50"], ["run", lower]):
        capsys.readouterr()
        assert cli.main(command) == (0 if says is None else 2), command
        told = " ".join(capsys.readouterr().err.split())
        assert says is None or (says in told and "source.path: " in told)
    # A copy of what the view shows is a table like any other, also one that has all columns.
    write_deltalake(str(tmp_path / "copy"), DeltaTable(str(tmp_path / "sink")).to_pyarrow_table())
    assert cli.main(["run", pipeline_over(tmp_path, "copy")]) == 0


def test_a_sink_that_a_restatement_has_revised_is_no_source_any_more(tmp_path, capsys):
    source = str(tmp_path / "source")
    upper = pipeline_of(tmp_path, "upper", source={"path": source, "changes": "restate"}, checkpoints={"path": str(tmp_path / "own")})
    write_deltalake(source, pa.table({"t": [1, 12, 99], "k": ["a", "a", "a"]}))
    lower = pipeline_over(tmp_path, "sink")
    assert [cli.main(["run", spec]) for spec in (upper, lower)] == [0, 0]
    DeltaTable(source).update({"t": "2"}, predicate="t = 12")
    assert cli.main(["run", upper]) == 0
    capsys.readouterr()
    assert cli.main(["run", lower]) == 2
    assert "has rows of revisions, each of which would count: name its spec by source.pipeline" in capsys.readouterr().err
