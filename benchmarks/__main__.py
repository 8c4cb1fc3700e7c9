"""All benchmarks, one after the other, and the report: ``make bench``, or ``python -m benchmarks NAME…`` for some of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from benchmarks.race import PYTHONS, ROOT

_IN_MEMORY = [
    "windowmill",
    "Spark in two stages",
    "Spark window()",
    "DuckDB in two stages",
    "polars in two stages",
    "polars group_by_dynamic",
]
#: Name -> module and options.
BENCHMARKS = {
    "job": ["job"],
    "hopping": ["hopping"],
    "hopping-delta": ["hopping", "--form", "delta", "--ways", *_IN_MEMORY],
    "hopping-many-keys": ["hopping", "--keys", "100000", "--hop", "10"],
    "hopping-skewed": ["hopping", "--zipf", "1.2", "--ways", *_IN_MEMORY],
    "hopping-20-million": ["hopping", "--rows", "20000000", "--ways", *_IN_MEMORY],
    "hopping-flights": ["hopping", "--flights", "--size", "1440", "--hop", "60"],
    "overlap": ["overlap"],
    "tuples": ["tuples"],
    "incremental": ["incremental"],
    "small-runs": ["small_runs"],
    "warm-runs": ["warm_runs"],
    "cost": ["cost"],
    "positions": ["positions"],
    "deltas": ["deltas"],
    "state-bytes": ["state_bytes"],
    "around-windows": ["around_windows"],
    "chains": ["chains"],
    "keeping-current": ["keeping_current"],
    "history": ["history"],
    "corrections": ["corrections"],
    "long-life": ["long_life"],
    "nodes": ["nodes"],
    "memory": ["memory"],
    "many-keys": ["many_keys"],
    "nexmark": ["nexmark"],
    "nexmark-compute": ["nexmark_current"],
    "dag-parsing": ["dag_parsing"],
    "minute-schedules": ["minute_schedules"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all of them by default")
    names = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    failed = []
    for number, name in enumerate(names, 1):
        print(f"\n[{number} of {len(names)}] {name}", flush=True)
        begun = time.monotonic()
        module, *options = BENCHMARKS[name]
        if subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *options], cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"{name}: {time.monotonic() - begun:.0f} s in all", flush=True)
    subprocess.run([PYTHONS["benchmarks.peer_ways"], "-m", "benchmarks.report"], cwd=ROOT, check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
