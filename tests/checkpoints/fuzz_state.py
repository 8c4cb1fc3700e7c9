"""Damage stored bytes at random and read them: ``python -m tests.checkpoints.fuzz_state --examples 1000000``.

Of each example the result must be equal, or an error of windowmill's own; never other rows, another error, or much memory. Of the
examples 99 in 100 are numbers in memory (a hundred microseconds each), one in 100 is a file of a table (about a
hundredth of a second each). A failure is told with its seed, and given again by ``--seed``.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.checkpoints.fuzz_ledger import ALLOCATED_BYTES, damaged, outcome
from tests.golden.make import HERE
from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import create
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit, open_state
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import SUM
from windowmill.windowing.columnar.hashes import RowCheck, with_checksums
from windowmill.windowing.grids import Span

GOLDEN = ("slices", "nodes", "integers", "open")


def golden_rows(case: str) -> pa.Table:
    """The rows of state of a golden table, with checksums."""
    return DeltaTable(HERE / "format-5" / case / "sink.windowmill" / "state").to_pyarrow_table()


def fuzz_rows(examples: int, rng: random.Random) -> Counter[str]:
    """Numbers of stored rows, as they are verified after reading."""
    rows, check = golden_rows("integers"), RowCheck("state")
    names = [field.name for field in rows.schema if field.type in (pa.int64(), pa.float64())]
    found = Counter[str]()
    for _ in range(examples):
        at = rows.schema.get_field_index(rng.choice(names))
        column = rows.column(at).combine_chunks()
        numbers = column.fill_null(0).view(pa.int64()).to_numpy().tobytes()
        other = np.frombuffer(damaged(numbers, rng)[: len(numbers)].ljust(len(numbers), b"\0"), np.int64)
        changed = pa.array(other, mask=column.is_null().to_numpy(zero_copy_only=False)).view(column.type)
        table = rows.set_column(at, rows.schema.field(at), changed)
        found[outcome(lambda table=table: _verified(check, table, rows), unchanged=table.equals(rows))] += 1  # type: ignore[misc]
    return found


def _verified(check: RowCheck, table: pa.Table, rows: pa.Table) -> bool:
    check.verify(table)
    return bool(table.equals(rows))


def fuzz_files(examples: int, rng: random.Random, folder: Path) -> Counter[str]:
    """Files of tables and of their logs, restored without Spark."""
    tables = [_table(case, folder / case) for case in GOLDEN]
    found = Counter[str]()
    for path, schema, sums in tables:
        outcome(lambda path=path, schema=schema, sums=sums: _restores(path, schema, sums), unchanged=True)  # type: ignore[misc]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(examples):
        path, schema, sums = tables[number % len(tables)]
        kept = folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(path, kept)
        files = [file for file in path.rglob("*") if file.is_file()]
        chosen = rng.choice(files)
        data = [file for file in files if file.suffix == ".parquet"]
        if rng.random() < 0.05:
            first, second = rng.sample(data, 2)
            one, other = first.read_bytes(), second.read_bytes()
            first.write_bytes(other)
            second.write_bytes(one)
        else:
            chosen.write_bytes(damaged(chosen.read_bytes() or b"\0", rng))
        came = outcome(lambda path=path, schema=schema, sums=sums: _restores(path, schema, sums), unchanged=False)  # type: ignore[misc]
        found[came] += 1
        if came.startswith("WRONG"):
            shutil.copytree(path, Path(tempfile.mkdtemp(prefix="fuzz_state_")) / path.name)
            print(f"example {number}: {chosen.relative_to(path)}: {came}", flush=True)
        shutil.rmtree(path)
        shutil.move(kept, path)
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    if taken > ALLOCATED_BYTES:
        found[f"WRONG: {taken >> 20} MiB of memory"] += 1
    return found


def _table(case: str, path: Path) -> tuple[Path, pa.Schema, list[int]]:
    """A table of three files with the rows of a golden one; its columns, and the checksums of its rows."""
    rows = golden_rows(case)
    create(str(path), str(Changes.of(rows.schema).schema), "state", {})
    third = rows.num_rows // 3
    for part in (rows.slice(0, third), rows.slice(third, third), rows.slice(2 * third)):
        write_deltalake(path, part, mode="append")
    return path, rows.schema, sorted(with_checksums(rows).column(SUM).to_pylist())


def _restores(path: Path, schema: pa.Schema, sums: list[int]) -> bool:
    """Whether the restored rows are those that were written."""
    check = open_state(str(path), left_at=3)
    limit = ReadLimit(1 << 60, 1 << 60, 1 << 60)
    found = DeltaState(str(path), check).partials(schema, Span(AXIS_BEGIN, AXIS_END), before_batch=1 << 62, limit=limit)
    return found is not None and sorted(with_checksums(found).column(SUM).to_pylist()) == sums


def main(examples: int, seed: int) -> int:
    """Run them; 1 if anything was wrong."""
    found = fuzz_rows(examples - examples // 100, random.Random(f"rows {seed}"))
    print(f"rows: {dict(found)}", flush=True)
    # Last: a library may end the process on a damaged file.
    with tempfile.TemporaryDirectory() as folder:
        of_files = fuzz_files(examples // 100, random.Random(f"files {seed}"), Path(folder))
    print(f"files: {dict(of_files)}", flush=True)
    return int(any(each.startswith("WRONG") for each in found + of_files))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    sys.exit(main(chosen.examples, chosen.seed))
