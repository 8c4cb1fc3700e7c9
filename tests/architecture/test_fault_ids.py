"""Every fault that docs/reliability.md names is injected by a test, and tests carry no other ids."""

from __future__ import annotations

import runpy
from pathlib import Path

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts/fault_ids.py"))


def test_every_fault_is_injected_by_a_test():
    faults, covered = SCRIPT["faults"](), SCRIPT["covered"]()
    assert len(faults) > 40, "the table of docs/reliability.md was not found"
    assert [fault for fault in faults if fault not in covered] == []
    assert sorted(set(covered) - set(faults)) == []
