"""Records: their order, their checksums, the fence: bugs that a fast test has to notice."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "ledger-without-its-fence",
        "checkpoints/record_table.py",
        "        fence = CommitProperties(max_commit_retries=0, custom_metadata=properties |",
        "        fence = CommitProperties(custom_metadata=properties |",
        (
            "tests/checkpoints/test_ledger.py::test_of_two_attempts_that_read_the_same_ledger_one_is_fenced",
            "tests/checkpoints/test_ledger.py::test_many_attempts_at_once_leave_one_record",
        ),
    ),
    Mutant(
        "lost-record-is-a-failure",
        "checkpoints/ledger.py",
        "            if not self._holds(record):\n                raise\n",
        "            raise\n",
        ("tests/simulator/test_simulator.py::test_a_response_that_is_lost_does_not_stop_the_batch",),
    ),
    Mutant(
        "any-record-is-mine",
        "checkpoints/ledger.py",
        "any((known.kind, known.attempt) == (record.kind, record.attempt) for known in found)",
        "any(known.kind == record.kind for known in found)",
        ("tests/checkpoints/test_ledger.py::test_a_record_made_again_below_the_last_checkpoint_counts_for_nothing",),
    ),
    Mutant(
        "record-below-a-checkpoint-believed",
        "checkpoints/ledger.py",
        "            self.refresh()\n            if not self._holds(record):\n                raise FencedError(",
        "            self.refresh()\n            if False:\n                raise FencedError(",
        ("tests/simulator/test_simulator.py::test_every_interleaving_of_two_attempts",),
    ),
    Mutant(
        "manifest-not-compared",
        "checkpoints/manifests.py",
        "    if hashlib.sha256(content).hexdigest() != digest:",
        "    if False:",
        ("tests/checkpoints/test_protocol.py::test_many_files_are_in_a_manifest",),
    ),
    Mutant(
        "outcome-that-does-not-fit-is-written",
        "checkpoints/ledger.py",
        "        try:\n            assemble([*self._records, record], self.path, integer_axis=self._integer_axis)\n",
        "        try:\n            pass\n",
        ("tests/checkpoints/test_ledger.py::test_an_outcome_that_does_not_fit_is_not_written",),
    ),
    Mutant(
        "record-checksum-not-verified",
        "checkpoints/records.py",
        "if record.sum != checksum(record):",
        "if False:",
        ("tests/checkpoints/test_ledger_integrity.py::test_a_record_that_is_another_is_refused_though_its_file_is_whole",),
    ),
    Mutant(
        "record-file-checksum-not-verified",
        "checkpoints/record_files.py",
        'if told and zlib.crc32(content) != int(told["crc"], 16):',
        "if False:",
        ("tests/checkpoints/test_ledger_integrity.py::test_each_byte_of_a_file_of_records_is_checked",),
    ),
    Mutant(
        "newer-ledger-accepted",
        "checkpoints/records.py",
        "    if record.format > FORMAT:",
        "    if False:",
        ("tests/checkpoints/test_ledger.py::test_a_newer_format_is_refused",),
    ),
    Mutant(
        "versions-may-overlap",
        "checkpoints/assembling.py",
        "    if batch.from_version != last.to_version:",
        "    if False:",
        ("tests/checkpoints/test_ledger_integrity.py::test_what_a_ledger_may_not_hold_is_refused",),
    ),
    Mutant(
        "watermark-may-go-back",
        "checkpoints/assembling.py",
        "if before is not None and (after < before if after is not None else not may_be_null):",
        "if False:",
        (
            "tests/checkpoints/test_ledger_integrity.py::test_what_a_ledger_may_not_hold_is_refused",
            "tests/checkpoints/test_ledger.py::test_an_outcome_that_does_not_fit_is_not_written",
        ),
    ),
    Mutant(
        "ruling-on-a-batch-that-was-not-held",
        "checkpoints/assembling.py",
        'if any(status_of(outcome.verdict) != "held" for outcome in outcomes[:-1]):',
        "if False:",
        ("tests/checkpoints/test_ledger_integrity.py::test_what_a_ledger_may_not_hold_is_refused",),
    ),
)
