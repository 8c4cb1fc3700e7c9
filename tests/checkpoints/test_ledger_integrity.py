"""What a ledger may not hold is refused with the batch's number; damaged bytes are never taken for records."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.checkpoints.fuzz_ledger import fuzz
from tests.checkpoints.records import append_all, history
from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.records import LedgerRecord, decoded, packed, sealed
from windowmill.windowing.errors import LedgerCorruptError, LedgerError


def changed(record: LedgerRecord, part: str | None = None, **changes) -> LedgerRecord:
    """``record`` with other values in a ``part`` of its body, or in the body itself; ``...`` leaves one out."""
    body = json.loads(record.body)
    inner = body if part is None else body[part]
    inner |= changes
    for name in [name for name, value in inner.items() if value is ...]:
        del inner[name]
    return replace(record, body=json.dumps(body))


def ruling(record: LedgerRecord, verdict: str) -> LedgerRecord:
    body = json.loads(record.body)
    return replace(record, kind="ruling", body=json.dumps({"changes": {}, "outcome": body["outcome"] | {"verdict": verdict}}))


def held(record: LedgerRecord) -> LedgerRecord:
    return changed(changed(record, "outcome", verdict="held"), totals=...)


DAMAGES = {
    "two records of a batch": (lambda r: [r[0], r[1], r[1], r[2]], "batch 1 has records of the kinds 'batch', 'batch'"),
    "a lost batch": (lambda r: [r[0], r[2]], "batch 1 is missing"),
    "a lost ruling": (lambda r: [r[0], held(r[1]), r[2]], "the ruling on batch 1 is missing"),
    "a ruling on a batch that was not held": (lambda r: [*r, ruling(r[2], "discarded")], "batch 2 has a ruling, but was not held"),
    "a second ruling": (
        lambda r: [*r[:2], held(r[2]), ruling(r[2], "released"), ruling(r[2], "discarded")],
        "batch 2 has a ruling, but was not held",
    ),
    "a ruling alone": (lambda r: [*r[:2], ruling(r[2], "released")], "batch 2 has records of the kinds 'ruling'"),
    "an unknown kind": (lambda r: [r[0], replace(r[1], kind="comit"), r[2]], "batch 1 has records of the kinds 'comit'"),
    "a watermark that goes back": (
        lambda r: [*r[:2], changed(r[2], "outcome", emitted=-3)],
        r"the watermark goes back at batch 2 \(emitted -3, 1 before it\)",
    ),
    "a latest event that is lost": (lambda r: [*r[:2], changed(r[2], "outcome", seen=None)], "the watermark goes back at batch 2"),
    "versions left out": (
        lambda r: [*r[:2], changed(r[2], "plan", from_version=2, to_version=3)],
        "batch 2 reads from version 2, but batch 1 read to 1",
    ),
    "versions read twice": (
        lambda r: [*r[:2], changed(r[2], "plan", from_version=0)],
        "batch 2 reads from version 0, but batch 1 read to 1",
    ),
    "another ledger's plan": (lambda r: [*r[:2], changed(r[2], "plan", generation="h")], "batch 2 is of another ledger"),
    "no plan": (lambda r: [changed(r[0], plan=...), *r[1:]], "the batch of batch 0 has no plan of a known kind"),
    "a field that is missing": (lambda r: [changed(r[0], "plan", interval_end=...), *r[1:]], "the batch of batch 0 has no interval_end"),
    "a field of the wrong type": (
        lambda r: [changed(r[0], "plan", to_version="0"), *r[1:]],
        r"the batch of batch 0 has a to_version of the wrong type \(str\)",
    ),
    "a list of the wrong type": (lambda r: [changed(r[0], "plan", zones=[[1]]), *r[1:]], "a zones of the wrong type"),
    "half a character": (lambda r: [changed(r[0], "plan", meaning="\ud800"), *r[1:]], "the batch of batch 0 cannot be read"),
    "an unknown action": (lambda r: [changed(r[0], "plan", action="rerun"), *r[1:]], "the batch of batch 0 has no plan of a known kind"),
    "a backfill of no range": (lambda r: [changed(r[0], "plan", action="backfill"), *r[1:]], "the batch of batch 0 has no range_from"),
    "another batch's plan": (lambda r: [changed(r[0], "plan", batch=7), *r[1:]], "the plan of batch 0 is for batch 7"),
    "no changes": (lambda r: [changed(r[0], changes=...), *r[1:]], "the batch record of batch 0 has no changes"),
    "a file of the wrong form": (
        lambda r: [changed(r[0], changes={"sink": asdict(Changes()) | {"adds": [{"path": 1}]}}), *r[1:]],
        "the batch of batch 0 has a adds of the wrong type",
    ),
    "a manifest of the wrong form": (lambda r: [changed(r[0], manifest=["m"]), *r[1:]], "batch 0 has no readable manifest"),
    "no object": (lambda r: [replace(r[0], body="[1]"), *r[1:]], "the batch of batch 0 is not an object"),
    "no JSON": (lambda r: [replace(r[0], body="{"), *r[1:]], "the batch of batch 0 cannot be read"),
    "no totals": (lambda r: [*r[:2], changed(r[2], totals=...)], "the batch of batch 2 has no totals"),
}


@pytest.mark.covers("D4")
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_ledger_may_not_hold_is_refused(path, damage):
    change, told = DAMAGES[damage]
    append_all(path, change(list(history(3))))
    with pytest.raises(LedgerCorruptError, match=told) as caught:
        _ = Ledger(path).totals
    assert "restore the folder from a copy" in str(caught.value)


@pytest.mark.covers("D4")
def test_totals_that_are_not_those_of_the_batches_are_refused(path):
    records = list(history(3))
    totals = json.loads(records[2].body)["totals"]
    append_all(path, [*records[:2], changed(records[2], totals=totals | {"counts": totals["counts"] | {"rows_read": 8}})])
    with pytest.raises(LedgerCorruptError, match="the totals in the record of batch 2"):
        Ledger(path).batches()


@pytest.mark.covers("D4")
@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_file_that_is_cut_off_is_named_with_its_batches(path, length):
    append_all(path, history(2))
    newest = max(Path(path).glob("*.parquet"))
    newest.write_bytes(newest.read_bytes()[:length])
    with pytest.raises(LedgerCorruptError, match=rf"batches 1 to 1.*{length} bytes instead of"):
        Ledger(path)


@pytest.mark.covers("D4")
def test_each_byte_of_a_file_of_records_is_checked():
    """Also where no page's own checksum reaches: in the footer a flipped bit would leave out rows, or a column."""
    file, content = packed([sealed(record, number) for number, record in enumerate(history(2))], 0)
    assert len(decoded(content, file, "p")) == 2
    for at in range(0, len(content), 7):
        damaged = content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
        with pytest.raises(LedgerCorruptError, match=r"the file is damaged \(its checksum does not match\)"):
            decoded(damaged, file, "p")


@pytest.mark.covers("D4")
@pytest.mark.parametrize(
    "change", [{"batch": 7}, {"kind": "ruling"}, {"attempt": "b"}, {"body": "{}"}, {"number": 1}, {"sum": None}], ids=str
)
def test_a_record_that_is_another_is_refused_though_its_file_is_whole(change):
    record = sealed(next(history(1)), 0)
    file, content = packed([replace(record, **change)], 0)
    with pytest.raises(LedgerCorruptError, match=r"is damaged|holds other records"):
        decoded(content, file, "p")


@pytest.mark.covers("D7")
@pytest.mark.parametrize(("version", "content"), [(4, b""), (4, b"{"), (4, b'{"add":{}}\n'), (0, None), (2, None)])
def test_a_log_entry_that_is_damaged_or_gone_is_refused(path, version, content):
    append_all(path, history(4))
    entry = Path(path, "_delta_log", f"{version:020d}.json")
    entry.unlink() if content is None else entry.write_bytes(content)
    with pytest.raises(LedgerError, match="restore the folder from a copy"):
        Ledger(path)


@pytest.mark.covers("D7")
@pytest.mark.parametrize("damage", ["empty", "truncate", "delete", "pointer"])
def test_a_damaged_checkpoint_of_the_log_gives_the_same_records_or_is_refused(path, damage):
    append_all(path, history(6))
    log = Path(path, "_delta_log")
    before = [batch.plan for batch in Ledger(path).batches()]
    DeltaTable(path).create_checkpoint()
    [checkpoint] = log.glob("*.checkpoint.parquet")
    if damage == "pointer":
        (log / "_last_checkpoint").write_text("{")
    elif damage == "delete":
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[: 0 if damage == "empty" else 200])
    try:
        assert [batch.plan for batch in Ledger(path).batches()] == before
    except LedgerError as err:
        assert "restore the folder from a copy" in str(err)  # noqa: PT017 - both ways are right


@pytest.mark.covers("D4")
def test_flipped_bits_are_found(tmp_path):
    found = fuzz(tmp_path, examples=60, seed=7, batches=6)
    assert (found.keys() <= {"equal", "refused"}, found.total()) == (True, 60), found
    assert found["refused"] > 20
