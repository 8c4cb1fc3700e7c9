"""Records: their order, their checksums, the fence: bugs that a fast test has to notice."""

from tests.mutants.edits import instead, never, without

LEDGER = "tests/checkpoints/test_ledger.py::test_"
SIMULATOR = "tests/simulator/test_simulator.py::test_"
PROTOCOL = "tests/checkpoints/test_protocol.py::test_"
LEDGER_INTEGRITY = "tests/checkpoints/test_ledger_integrity.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    (f"{LEDGER}of_two_attempts_that_read_the_same_ledger_one_is_fenced", f"{LEDGER}many_attempts_at_once_leave_one_record"): [
        ("ledger-without-its-fence", "checkpoints.records:DeltaRecords._commit", without("max_commit_retries=0")),
    ],
    f"{SIMULATOR}a_response_that_is_lost_does_not_stop_the_batch": [
        ("lost-record-is-a-failure", "checkpoints.ledger:Ledger._append", instead("if not self._holds(_):\n    raise", "raise")),
    ],
    f"{LEDGER}a_record_made_again_below_the_last_checkpoint_counts_for_nothing": [
        (
            "any-record-is-mine",
            "checkpoints.ledger:Ledger._holds",
            instead("(_1.kind, _.attempt) == (_2.kind, _.attempt)", "_1.kind == _2.kind"),
        ),
        ("record-below-a-checkpoint-believed", "checkpoints.records:DeltaRecords._commit", never("floor_of(_) >= _")),
    ],
    f"{PROTOCOL}many_files_are_in_a_manifest": [
        ("manifest-not-compared", "checkpoints.ledger:read_manifest", never("hashlib.sha256(_).hexdigest() != _")),
    ],
    f"{LEDGER}an_outcome_that_does_not_fit_is_not_written": [
        ("outcome-that-does-not-fit-is-written", "checkpoints.ledger:Ledger._append", without("assemble(...)")),
    ],
    f"{LEDGER_INTEGRITY}a_record_that_is_another_is_refused_though_its_file_is_whole": [
        ("record-checksum-not-verified", "checkpoints.records:check_record", never("_.sum != checksum(_)")),
    ],
    f"{LEDGER_INTEGRITY}each_byte_of_a_file_of_records_is_checked": [
        ("record-file-checksum-not-verified", "checkpoints.records:decoded", never("_ and zlib.crc32(_) != _")),
    ],
    f"{LEDGER}another_format_is_refused_in_one_line": [
        ("newer-ledger-accepted", "checkpoints.records:check_record", without("raise LedgerError(...)")),
    ],
    f"{LEDGER_INTEGRITY}what_a_ledger_may_not_hold_is_refused": [
        ("versions-may-overlap", "checkpoints.ledger:_check_order", never("_.from_version != _.to_version")),
        ("ruling-on-a-batch-that-was-not-held", "checkpoints.ledger:_batch", never('any(status_of(_) != "held" for _ in _)')),
    ],
    (f"{LEDGER_INTEGRITY}what_a_ledger_may_not_hold_is_refused", f"{LEDGER}an_outcome_that_does_not_fit_is_not_written"): [
        ("watermark-may-go-back", "checkpoints.ledger:_check_order", never("_ is not None and (_ if _ is not None else _)")),
    ],
}
