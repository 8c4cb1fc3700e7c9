"""Damage a ledger's files: what is read must be what was written, or be refused with a ``LedgerError``, and take little memory.

python -m tests.checkpoints.fuzz_ledger --examples 10000
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tests.checkpoints.records import append_all, history
from windowmill.checkpoints.ledger import Ledger
from windowmill.windowing.errors import LedgerError, WindowmillError

#: What reading damaged files may allocate beyond their size.
ALLOCATED_BYTES = 64 << 20


def damaged(data: bytes, rng: random.Random) -> bytes:
    """``data`` with a bit flipped, bytes overwritten, zeroed, cut, moved or put in."""
    place = rng.randrange(len(data))
    length = min(len(data) - place, 1 << rng.randrange(8))
    match rng.randrange(8):
        case 0 | 1 | 2:
            return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case 3:
            return data[:place] + rng.randbytes(length) + data[place + length :]
        case 4:
            return data[:place] + bytes(length) + data[place + length :]
        case 5:
            return data[:place]
        case 6:
            other = rng.randrange(len(data))
            return data[:place] + data[other : other + length] + data[place + length :]
        case _:
            return data[:place] + rng.randbytes(length) + data[place:]


def outcome(read: Callable[[], bool], *, unchanged: bool, refusal: type[Exception] = WindowmillError) -> str:
    """What came of reading: ``equal``, ``refused``, or what is wrong."""
    try:
        equal = read()
    except refusal:
        return "WRONG: refused though unchanged" if unchanged else "refused"
    except BaseException as err:  # noqa: BLE001 - whatever it is: it is no error of ours
        return f"WRONG: {type(err).__module__}.{type(err).__name__}"
    return "equal" if equal else "WRONG: other rows"


def fuzz(folder: Path, *, examples: int, seed: int, batches: int) -> Counter[str]:
    """Damage one file at a time of a ledger of ``batches`` batches below ``folder``, and read it; from 30 on it has merged files."""
    path, rng, found = folder / "ledger", random.Random(seed), Counter[str]()
    append_all(str(path), history(batches))
    expected = Ledger(str(path)).batches()
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    for number in range(examples):
        file = rng.choice(files)
        content = file.read_bytes()
        file.write_bytes(damaged(content or b"\0", rng))
        came = outcome(lambda: Ledger(str(path)).batches() == expected, unchanged=False, refusal=LedgerError)
        if pool.max_memory() - before > ALLOCATED_BYTES + len(content):
            came = "WRONG: much memory"
        if came.startswith("WRONG"):
            print(f"example {number}: {file.relative_to(path)}: {came}", flush=True)
        found[came] += 1
        file.write_bytes(content)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    # A flip that makes a library ask for gigabytes shall fail here, not take the machine with it.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = fuzz(Path(scratch), examples=chosen.examples, seed=chosen.seed, batches=30)
    print(dict(outcomes))
    raise SystemExit(any(each.startswith("WRONG") for each in outcomes))
