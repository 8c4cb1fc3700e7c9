"""State whose stored rows are not those that were written stops a run, whoever works on it, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake

from tests.readers import EVERY_CASE, by_each_scheduler, compute_by_many_tasks
from tests.spark.harness import Bench, differences, events
from windowmill.checkpoints.delta_tables import own_commit
from windowmill.jobs.cli import main
from windowmill.jobs.layouts import limits
from windowmill.windowing.columnar.hashes import REMEDY
from windowmill.windowing.errors import StateCorruptError, StateMissingError

pytestmark = pytest.mark.covers("D3")
ROWS = events(51, 300)
VISITS: dict[str, Any] = {"name": "visits", "type": "session", "gap": "40 minutes"}
SESSIONS: dict[str, Any] = {"windows": [VISITS], "aggregates": {"n": {"count": "*"}, "labels": {"collect": "label"}}}
LIVE = SESSIONS | {"windows": [VISITS | {"max_size": "10 days"}], "emit": "revise"}
POSITIONS: dict[str, Any] = {"windows": [{"name": "last", "type": "sliding", "evict": {"count": 9}, "trigger": {"count": 4}}]}
NAMED: dict[str, dict[str, Any]] = {"slices": {}, "sessions": SESSIONS, "live rows": LIVE, "positions": POSITIONS}


def begun(folder: Path, name: str) -> tuple[Bench, Path]:
    """A pipeline with one batch done, in this process, and another waiting; the path of its state."""
    bench = Bench(folder, NAMED[name])
    bench.land(ROWS[:200])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WINDOWMILL_COMPUTE", "local")
        patched.setattr(limits, "MAX_ROWS", len(ROWS))
        patched.setattr(limits, "MAX_STATE_ROWS", len(ROWS))
        bench.run()
    bench.land(ROWS[200:])
    return bench, folder / "sink.windowmill" / "state"


def unharmed(bench: Bench) -> None:
    assert DeltaTable(bench.sink).transaction_version(f"windowmill/{_generation(bench)}/sink") == 0


def _generation(bench: Bench) -> str:
    from windowmill.checkpoints.ledger import Ledger

    return Ledger.open(bench.pipeline).generation


@by_each_scheduler("kind", NAMED, by_tasks=NAMED)
def test_a_row_that_is_another_is_found(tmp_path, kind):
    bench, state = begun(tmp_path, kind)
    rows = DeltaTable(state).to_pyarrow_table()
    name = "_number" if kind in ("live rows", "positions") else "rows"
    altered = rows.set_column(rows.schema.get_field_index(name), name, _one_more(rows[name]))
    # As our own maintenance would write it: what somebody else writes is refused before it is read.
    write_deltalake(state, altered, mode="overwrite", commit_properties=own_commit("test"))
    with pytest.raises(StateCorruptError, match=rf"^state {state}: 1 of \d+ rows read differ from what was written; {REMEDY}$"):
        bench.run()
    unharmed(bench)
    write_deltalake(state, rows, mode="overwrite", commit_properties=own_commit("test"))
    bench.run()
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


def _one_more(column: pa.ChunkedArray) -> pa.Array:
    values = column.to_pylist()
    last = max(index for index, value in enumerate(values) if value is not None)
    values[last] += 1
    return pa.array(values, column.type)


@pytest.mark.spark
@pytest.mark.parametrize("kind", NAMED if EVERY_CASE else ["slices", "live rows"])
def test_files_cut_or_gone_are_told_in_spark(spark, tmp_path, monkeypatch, kind):
    compute_by_many_tasks(monkeypatch)
    bench, state = begun(tmp_path, kind)
    file = max(map(Path, DeltaTable(state).file_uris()), key=lambda path: path.stat().st_size)
    whole = file.read_bytes()
    for sums in state.glob(".*.crc"):
        sums.unlink()
    file.write_bytes(whole[: len(whole) // 2])
    told = rf"^state \S*{state}/: {file.name} has \d+ bytes, by the table's log {len(whole)}; {REMEDY}$"
    with pytest.raises(StateCorruptError, match=told):
        bench.run()
    file.unlink()
    with pytest.raises(StateMissingError, match=rf"^state {state}: a file is gone \(.*{file.name}.*\); {REMEDY}$"):
        bench.run()
    unharmed(bench)
    file.write_bytes(whole)
    bench.run()
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


@pytest.mark.covers("D2")
def test_state_that_is_gone_is_not_started_empty(tmp_path):
    bench, state = begun(tmp_path, "slices")
    state.rename(tmp_path / "elsewhere")
    with pytest.raises(StateCorruptError, match=rf"state {state}: \S+, which the ledger records for the last batch .*, is gone"):
        bench.run()
    (tmp_path / "elsewhere").rename(state)
    bench.run()
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


def test_state_of_a_little_batch(tmp_path, capfd):
    bench, state = begun(tmp_path, "slices")
    [file] = map(Path, DeltaTable(state).file_uris())
    rows = pq.read_table(file)
    size = file.stat().st_size
    pq.write_table(rows.slice(0, rows.num_rows - 1), file)
    with pytest.raises(StateCorruptError, match=rf"has \d+ bytes, by the table's log {size}; nothing was written") as raised:
        bench.run()
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(bench.spec))
    capfd.readouterr()
    assert main(["run", str(spec)]) == 1
    assert f"windowmill: {raised.value}" in " ".join(capfd.readouterr().err.split())
    unharmed(bench)
