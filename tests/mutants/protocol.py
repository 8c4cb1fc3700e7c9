"""What has landed, and what others did to the tables: bugs that a fast test has to notice."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "write-without-asking",
        "checkpoints/protocol.py",
        "        found = self.landed(role)\n        if found is None:\n            reach(",
        "        found = None\n        if found is None:\n            reach(",
        ("tests/checkpoints/test_protocol.py::test_what_has_landed_is_not_written_again",),
    ),
    Mutant(
        "adopt-without-comparing",
        "checkpoints/protocol.py",
        "if found.attempt != self.id and not same():",
        "if False:",
        (
            "tests/simulator/test_simulator.py::test_attempts_that_compute_different_rows_are_not_mixed",
            "tests/checkpoints/test_protocol.py::test_what_an_earlier_attempt_wrote_is_adopted_if_it_is_the_same",
        ),
    ),
    Mutant(
        "lost-response-is-a-failure",
        "checkpoints/protocol.py",
        "            except Exception as err:\n                found = self.landed(role)\n",
        "            except Exception as err:\n                found = None\n",
        (
            "tests/checkpoints/test_protocol.py::test_a_lost_response_is_asked_for",
            "tests/simulator/test_simulator.py::test_a_response_that_is_lost_does_not_stop_the_batch",
        ),
    ),
    Mutant(
        "failed-write-passes",
        "checkpoints/protocol.py",
        '                            "run again"\n                        ) from err\n                    raise\n',
        '                            "run again"\n                        ) from err\n',
        ("tests/checkpoints/test_protocol.py::test_a_write_that_failed_and_did_not_land_is_told_as_it_failed",),
    ),
    Mutant(
        "not-landed-passes",
        "checkpoints/protocol.py",
        '            if found is None:\n                kind = SinkError if role == "sink" else StateError\n                raise kind(',
        (
            "            if found is None:\n"
            '                kind = SinkError if role == "sink" else StateError\n'
            "                return Landed(0, self.id, 0, None, {})\n"
            "                raise kind("
        ),
        ("tests/checkpoints/test_protocol.py::test_a_commit_that_did_not_land_stops_the_batch",),
    ),
    Mutant(
        "foreign-writes-accepted",
        "checkpoints/protocol.py",
        "    if not accept_changes:\n        raise _refused(",
        "    if False:\n        raise _refused(",
        ("tests/checkpoints/test_protocol.py::test_rows_that_others_append",),
    ),
    Mutant(
        "accept-changes-of-the-state",
        "checkpoints/protocol.py",
        'accept_changes=accept_changes and role != "state"',
        "accept_changes=accept_changes",
        ("tests/checkpoints/test_protocol.py::test_rows_that_others_append",),
    ),
    Mutant(
        "restored-rows-are-foreign",
        "checkpoints/protocol.py",
        "return first if any(foreign.values()) and any(every.values()) else None",
        "return first",
        ("tests/checkpoints/test_protocol.py::test_rows_that_others_delete_and_restore",),
    ),
    Mutant(
        "missing-table-accepted",
        "checkpoints/protocol.py",
        "    if standing is None:\n        raise StateMissingError(",
        "    if standing is None:\n        return\n        raise StateMissingError(",
        ("tests/checkpoints/test_protocol.py::test_a_table_that_is_gone_is_not_made_anew",),
    ),
    Mutant(
        "older-table-accepted",
        "checkpoints/protocol.py",
        "if standing.version < written.version:",
        "if False:",
        ("tests/checkpoints/test_protocol.py::test_a_table_whose_log_was_cut_off",),
    ),
    Mutant(
        "table-id-not-compared",
        "checkpoints/protocol.py",
        "if written.table_id is not None and standing.table_id != written.table_id:",
        "if False:",
        ("tests/checkpoints/test_protocol.py::test_another_table_in_its_place",),
    ),
    Mutant(
        "digest-not-compared",
        "checkpoints/protocol.py",
        "if change is not None and change.digest != written.digest:",
        "if False:",
        ("tests/checkpoints/test_protocol.py::test_a_log_entry_exchanged_for_another",),
    ),
    Mutant(
        "unknown-batch-is-ours",
        "checkpoints/protocol.py",
        "(batch >= ledger.count or (table.role",
        "(batch > ledger.count or (table.role",
        (
            "tests/simulator/test_simulator.py::test_a_dropped_attempt_that_wakes_is_noticed",
            "tests/checkpoints/test_protocol.py::test_a_ledger_restored_from_an_older_copy",
        ),
    ),
    Mutant(
        "abandoned-batch-is-ours",
        "checkpoints/protocol.py",
        '(table.role != "quality" and ledger.is_abandoned(batch))',
        "False",
        (
            "tests/simulator/test_simulator.py::test_a_dropped_attempt_that_wakes_is_noticed",
            "tests/checkpoints/test_protocol.py::test_rows_of_a_dropped_batch_are_noticed",
        ),
    ),
    Mutant(
        "orphans-accepted",
        "checkpoints/protocol.py",
        "    if not ledger.count:\n        _refuse_orphans(ledger, tables)\n",
        "",
        (
            "tests/simulator/test_simulator.py::test_a_ledger_that_is_lost_is_noticed",
            "tests/checkpoints/test_protocol.py::test_a_ledger_that_is_gone",
        ),
    ),
    Mutant(
        "landed-number-planned-again",
        "checkpoints/protocol.py",
        "            if table.landed(app, plan.batch) is not None:\n                raise LedgerBehindError(",
        "            if False:\n                raise LedgerBehindError(",
        ("tests/jobs/test_plans.py::test_a_plan_whose_number_has_landed_is_not_recorded",),
    ),
    Mutant(
        "discard-after-publishing",
        "checkpoints/protocol.py",
        'if ruling == "discard" and self.landed("sink") is not None:',
        "if False:",
        (
            "tests/jobs/test_turns.py::test_what_has_been_published_cannot_be_discarded",
            "tests/simulator/test_simulator.py::test_a_held_batch_and_every_fault_of_its_ruling",
        ),
    ),
    Mutant(
        "abandon-after-landing",
        "checkpoints/protocol.py",
        'if role != "quality" and table.landed(plan.app_id(pipeline, role), plan.batch) is not None:',
        "if False:",
        ("tests/simulator/test_simulator.py::test_abandon_drops_only_what_has_written_nothing",),
    ),
    Mutant(
        "validation-recorded-once-for-all",
        "checkpoints/protocol.py",
        '        return f"{name}/{self._validation}" if role == "quality" else name',
        "        return name",
        ("tests/checkpoints/test_protocol.py::test_a_batch_is_validated_again_once_it_was_held_and_once_its_rules_are_others",),
    ),
    Mutant(
        "later-batch-landed-unnoticed",
        "checkpoints/own_tables.py",
        "        if found > batch:\n            raise LedgerBehindError(",
        "        if found > batch:\n            return None\n            raise LedgerBehindError(",
        (
            "tests/checkpoints/test_protocol.py::test_what_another_batch_landed_is_not_taken_for_this_one",
            "tests/jobs/test_plans.py::test_a_table_restored_beside_an_older_ledger_tells_a_later_batch",
        ),
    ),
    Mutant(
        "rewrites-are-changes",
        "checkpoints/own_tables.py",
        'changes = bool(action[kind].get("dataChange", True))',
        "changes = True",
        ("tests/checkpoints/test_protocol.py::test_what_rewrites_or_describes_is_no_change",),
    ),
    Mutant(
        "append-on-another-version",
        "checkpoints/appending.py",
        "write_deltalake(table or path, rows,",
        "write_deltalake(path, rows,",
        ("tests/checkpoints/test_protocol.py::test_an_append_between_anothers_check_and_its_write_fails",),
    ),
    Mutant(
        "quality-on-another-version",
        "expectations/history.py",
        "write_deltalake(table or place, rows,",
        "write_deltalake(place, rows,",
        ("tests/expectations/test_history.py::test_the_same_results_of_another_process_are_noticed",),
    ),
    Mutant(
        "quarantine-compared-as-a-set",
        "jobs/batch/adopting.py",
        "return Counter(zip(",
        "return set(zip(",
        ("tests/jobs/test_arrival.py::test_rows_set_aside_by_two_attempts_are_compared_each_as_often_as_it_came",),
    ),
    Mutant(
        "earlier-tables-forgotten",
        "checkpoints/protocol.py",
        "self.written: dict[str, Written] = dict(ledger.written())",
        "self.written: dict[str, Written] = {}",
        ("tests/checkpoints/test_protocol.py::test_a_table_that_a_batch_leaves_alone_is_compared_with_what_an_earlier_one_wrote",),
    ),
    Mutant(
        "quarantine-not-looked-at",
        "checkpoints/own_tables.py",
        '"quarantine": places.quarantine, ',
        "",
        ("tests/jobs/test_plans.py::test_a_plan_whose_number_has_landed_is_not_recorded",),
    ),
    Mutant(
        "foreign-change-during-a-batch-committed",
        "checkpoints/protocol.py",
        "                if foreign is not None:\n                    raise _refused(",
        "                if False:\n                    raise _refused(",
        ("tests/checkpoints/test_protocol.py::test_rows_that_others_remove_while_a_batch_runs",),
    ),
    Mutant(
        "accepted-changes-forgotten",
        "checkpoints/protocol.py",
        "    ledger.accept(table.role, replace(written, version=standing.version, digest=None))\n",
        "",
        ("tests/checkpoints/test_protocol.py::test_changes_are_accepted_once_and_for_all",),
    ),
    Mutant(
        "restore-after-a-compaction-is-foreign",
        "checkpoints/protocol.py",
        "every.update(change.added | change.moved_in)",
        "every.update(change.added)",
        ("tests/checkpoints/test_protocol.py::test_rows_that_others_delete_after_a_compaction_and_restore",),
    ),
    Mutant(
        "older-maintenance-is-foreign",
        "checkpoints/protocol.py",
        '    if role == "state" and written.table_id is None:',
        "    if False:",
        ("tests/checkpoints/test_protocol.py::test_maintenance_by_the_first_release_is_no_foreign_change",),
    ),
    Mutant(
        "log-without-its-beginning",
        "checkpoints/own_tables.py",
        "        if has_lost_its_beginning(table):",
        "        if False:",
        ("tests/checkpoints/test_protocol.py::test_a_table_whose_first_log_entries_are_gone",),
    ),
)
