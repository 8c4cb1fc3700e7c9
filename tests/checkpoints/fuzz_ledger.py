"""Flip bits of a ledger's files and cut them off: what is read must be what was written, or be refused with a ``LedgerError``.

python -m tests.checkpoints.fuzz_ledger --examples 10000
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tests.checkpoints.records import history
from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.records import DeltaRecords
from windowmill.windowing.errors import LedgerError

#: What reading a damaged ledger may allocate beyond the size of its files.
ALLOCATED_BYTES = 64 << 20


@dataclass
class Result:
    """``accepted``: read as something else; ``wrong``: ended otherwise than with a ``LedgerError``, or took too much memory."""

    examples: int = 0
    equal: int = 0
    refused: int = 0
    accepted: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    allocated_bytes: int = 0


def fuzz(folder: Path, *, examples: int, seed: int, batches: int) -> Result:
    """Damage one file at a time of a ledger of ``batches`` batches below ``folder``, and read it."""
    folder.mkdir(parents=True, exist_ok=True)
    path, chance = folder / "ledger", random.Random(seed)
    _write(path, batches)
    expected = Ledger(str(path)).batches()
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    result, start = Result(), time.monotonic()
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    for _ in range(examples):
        file = chance.choice(files)
        content = file.read_bytes()
        damage, damaged = _damaged(content, chance)
        file.write_bytes(damaged)
        _read(path, expected, f"{file.relative_to(path)}: {damage}", result)
        file.write_bytes(content)
        taken = max(pool.max_memory() - before, 0)
        if taken > ALLOCATED_BYTES + len(content) and taken > result.allocated_bytes:
            result.wrong.append(f"{file.relative_to(path)}: {damage}: {taken:,} bytes allocated")
        result.allocated_bytes = max(result.allocated_bytes, taken)
    result.seconds = time.monotonic() - start
    return result


def _write(path: Path, batches: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    store = DeltaRecords(str(path))
    store.load()
    for record in history(batches):
        store.append(record)
        store.load()


def _damaged(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    at = chance.randrange(max(1, len(content)))
    if chance.random() < 0.15:
        return f"cut off at {at}", content[:at]
    changed = bytearray(content)
    bit = chance.randrange(8)
    changed[at] ^= 1 << bit
    return f"bit {bit} of byte {at}", bytes(changed)


def _read(path: Path, expected: Sequence[Batch], damage: str, result: Result) -> None:
    result.examples += 1
    try:
        found = Ledger(str(path)).batches()
    except LedgerError:
        result.refused += 1
    except BaseException as err:
        if isinstance(err, KeyboardInterrupt | SystemExit):
            raise
        result.wrong.append(f"{damage}: {type(err).__name__}: {err}")
    else:
        if found == expected:
            result.equal += 1
        else:
            result.accepted.append(damage)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000)
    parser.add_argument(
        "--batches", type=int, default=30, help="from 30 on there is a checkpoint of the log, and merged files (default 30)"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # A flip that makes a library ask for gigabytes shall fail here, not take the machine with it.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        result = fuzz(Path(folder), examples=arguments.examples, seed=arguments.seed, batches=arguments.batches)
    for line in [*result.wrong, *(f"read as something else: {damage}" for damage in result.accepted)][:50]:
        print(line)
    print(
        f"{result.examples} examples: {result.equal} equal, {result.refused} refused, "
        f"{len(result.accepted)} accepted, {len(result.wrong)} wrong ({result.examples / result.seconds:.0f} a second), "
        f"at most {result.allocated_bytes:,} bytes allocated"
    )
    return 1 if result.wrong or result.accepted else 0


if __name__ == "__main__":
    raise SystemExit(main())
