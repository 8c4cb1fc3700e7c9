"""Break the product in each known way, and see that a fast test notices: ``python -m tests.mutants [--only NAME] [--jobs N] [--spark]``.

With ``--histories N`` random histories of all commands (:mod:`tests.faults.test_histories`) are to notice what ``tests.mutants.days_after``
breaks, without its tests.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.mutants import days_after
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
#: Seconds that the tests of one mutant may take; those of one that needs Spark.
SECONDS, SPARK_SECONDS = 120, 300
#: What a scratch copy goes without. Compiled kernels and modules come along: a copy keeps the times of files by which they are known.
LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", ".demo*", "build", "dist", "spark-warehouse", "metastore_db", "derby.log")
#: The random histories, how many are lived through at once, and how it says which of them went wrong.
HISTORIES, AT_ONCE = "tests/faults/test_histories.py", 10
_WENT_WRONG = re.compile(r"seeds that failed: \[(?P<first>\d+)")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+::[^\[\s]+)", re.MULTILINE)


def scratch_copy(folder: Path) -> Path:
    """The checkout as it stands, in ``folder``, with its environment."""
    copy = folder / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (copy / ".venv").symlink_to((ROOT / ".venv").resolve())
    return copy


def run_tests(copy: Path, tests: Sequence[str], seconds: float, more: Mapping[str, str] | None = None) -> tuple[int | None, str]:
    """Exit code of pytest in ``copy``, null if it took too long, and what it printed; ``more`` are variables of its environment."""
    # A module that a mutant changes twice within a second keeps its time: no compiled form of it may stay behind.
    own = {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", "PYTHONDONTWRITEBYTECODE": "1"} | dict(more or {})
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=os.environ | own, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as err:
        return None, str(err)
    return done.returncode, done.stdout + done.stderr


@contextmanager
def broken(mutant: Mutant, copy: Path) -> Iterator[None]:
    """Have ``copy`` be with the mutant."""
    file = copy / mutant.path
    file.write_text(mutant.applied(file.read_text()))
    try:
        yield
    finally:
        shutil.copy2(ROOT / mutant.path, file)


def live(copy: Path, first: int, number: int) -> tuple[int | None, str]:
    """As :func:`run_tests`, of so many random histories from the seed ``first`` on."""
    return run_tests(copy, [HISTORIES], number * SECONDS, {"WINDOWMILL_SEED": str(first), "WINDOWMILL_HISTORIES": str(number)})


def attempt_by_histories(mutant: Mutant, copy: Path, most: int) -> tuple[bool, str]:
    """As :func:`attempt`, by at ``most`` so many random histories."""
    with broken(mutant, copy):
        for first in range(0, most, AT_ONCE):
            code, printed = live(copy, first, AT_ONCE)
            if code == 1 and (wrong := _WENT_WRONG.search(printed)):
                return True, f"by history {int(wrong['first']) + 1}"
            if code != 0:
                return False, f"the histories did not end (exit code {code})\n{printed[-2_000:]}"
    return False, f"SURVIVED {most} histories"


def attempt(mutant: Mutant, copy: Path) -> tuple[bool, str]:
    """Whether the tests of ``mutant`` notice it in ``copy``, and by which test, or why not."""
    with broken(mutant, copy):
        code, printed = run_tests(copy, mutant.tests, SPARK_SECONDS if mutant.spark else SECONDS)
    failed = _FAILED.search(printed)
    if code == 1 and failed:
        return True, failed["test"]
    if code == 0:
        return False, f"SURVIVED {', '.join(mutant.tests)}"
    return False, f"its tests did not run ({'they took too long' if code is None else f'exit code {code}'})\n{printed[-2_000:]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant alone; may be given again")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutants that are tried at once (2)")
    parser.add_argument("--spark", action="store_true", help="also the mutants that only tests with Spark notice")
    parser.add_argument("--histories", type=int, default=0, metavar="N", help="those of the days after, by at most N random histories")
    options = parser.parse_args(arguments)
    unknown = set(options.only) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no mutant {', '.join(sorted(unknown))}; they are {', '.join(mutant.name for mutant in MUTANTS)}")
    chosen = [mutant for mutant in MUTANTS if mutant.name in options.only or (not options.only and (options.spark or not mutant.spark))]
    if options.histories:
        own = {name for mutants in days_after.MUTANTS.values() for name, *_ in mutants}
        chosen = [mutant for mutant in chosen if mutant.name in own]
    for mutant in chosen:
        mutant.applied((ROOT / mutant.path).read_text())
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="windowmill-mutants-") as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(max(1, options.jobs)):
            copies.put(scratch_copy(Path(folder) / str(number)))
        if options.histories:
            code, printed = live(copies.queue[0], 0, options.histories)
        else:
            code, printed = run_tests(copies.queue[0], sorted({test for mutant in chosen for test in mutant.tests}), 4 * SPARK_SECONDS)
        if code != 0:
            print(f"{printed}\nthe tests have to pass before anything is changed")
            return 1

        def noticed(mutant: Mutant) -> tuple[bool, str]:
            copy = copies.get()
            try:
                return attempt_by_histories(mutant, copy, options.histories) if options.histories else attempt(mutant, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(max(1, options.jobs)) as pool:
            caught = 0
            for mutant, (is_caught, told) in zip(chosen, pool.map(noticed, chosen), strict=True):
                caught += is_caught
                print(f"{mutant.name:<44} {told}", flush=True)
    left_out = sum(mutant.spark for mutant in MUTANTS) if not options.spark and not options.only else 0
    more = f"; {left_out} more need Spark (--spark)" if left_out else ""
    print(f"{caught} of {len(chosen)} mutants caught in {time.monotonic() - began:.0f} s{more}")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
