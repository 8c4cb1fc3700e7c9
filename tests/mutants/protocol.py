"""What is recorded and published, and what others did to the tables: bugs that a fast test has to notice."""

from tests.mutants.edits import always, before, instead, never, without

PROTOCOL = "tests/checkpoints/test_protocol.py::test_"
UPKEEP = "tests/checkpoints/test_upkeep.py::test_"
SIMULATOR = "tests/simulator/test_simulator.py::test_"
FOREIGN_CHANGES = "tests/checkpoints/test_foreign_changes.py::test_"
CURRENT = "tests/jobs/test_current.py::test_"
PLANS = "tests/jobs/test_plans.py::test_"
CHUNKS = "tests/windowing/test_chunks.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    f"{PROTOCOL}a_commit_that_another_overtakes_begins_anew": [
        ("commit-without-asking", "checkpoints.committer:DeltaRsCommitter.commit", never("_ is not None and _ >= _.batch")),
        ("overtaken-commit-fails", "checkpoints.committer:DeltaRsCommitter.commit", always("table_at(...).version() == _")),
    ],
    (f"{PROTOCOL}a_clean_pipeline_is_verified", f"{PROTOCOL}commits_that_are_missing_are_made_by_whoever_comes_next"): [
        ("transaction-left-out", "checkpoints.committer:commit_files", without("app_transactions=_")),
    ],
    f"{PROTOCOL}a_version_made_again_below_the_last_checkpoint_is_not_taken_for_a_commit": [
        ("commit-below-a-checkpoint-believed", "checkpoints.committer:DeltaRsCommitter.commit", always("floor_of(...) <= _")),
    ],
    f"{UPKEEP}commits_checkpoint_the_log_by_themselves": [
        ("checkpoints-inside-commits", "checkpoints.delta_tables:checkpoint_if_due", instead("suppress(...)", "suppress()")),
    ],
    f"{PROTOCOL}a_range_is_replaced_in_one_commit": [
        ("moved-files-removed-as-recorded", "checkpoints.committer:_write", never("not _.replaces_all and any(...)")),
    ],
    f"{PROTOCOL}a_sink_that_delta_rs_cannot_write_is_left_to_spark": [
        ("types-not-compared", "checkpoints.committer:beyond_delta_rs", never("_ in _ and _[_].type != _.type")),
        (
            "constraints-not-looked-at",
            "checkpoints.committer:beyond_delta_rs",
            never("any((_.startswith('delta.constraints.') for _ in _.configuration))"),
        ),
        (
            "spark-commits-on-object-storage",
            "checkpoints.committer:DeltaRsCommitter._other",
            never("not is_local(place)"),
        ),
    ],
    f"{PROTOCOL}of_two_attempts_one_wins_and_the_files_of_the_other_go": [
        (
            "publish-before-the-record",
            "checkpoints.protocol:record",
            before("ledger.record(...)", 'tables["sink"].commit(Publication("sink", "app", plan.batch, changes["sink"]))'),
        ),
        ("lost-files-stay", "checkpoints.protocol:record", without("discard_files(...)")),
    ],
    f"{PROTOCOL}the_files_of_a_record_of_unknown_fate_stay": [
        ("files-of-unknown-fate-deleted", "checkpoints.protocol:record", always("_ or not _")),
    ],
    (f"{PROTOCOL}a_lost_response_is_asked_for", f"{SIMULATOR}a_response_that_is_lost_does_not_stop_the_batch"): [
        ("lost-response-is-a-failure", "checkpoints.protocol:_publish", instead("_1 = _found(..., anywhere=True)", "_1 = None")),
    ],
    f"{PROTOCOL}a_commit_that_fails_is_told_as_it_failed_and_made_by_the_next_run": [
        ("not-landed-passes", "checkpoints.protocol:_publish", instead("raise error_of(_)(...)", "return False")),
    ],
    f"{FOREIGN_CHANGES}a_sink_that_another_pipeline_made_meanwhile_is_refused": [
        ("strange-sink-taken-before-the-record", "checkpoints.protocol:_check_tables", without("_refuse_strange(...)")),
        ("strange-sink-taken-behind-the-record", "checkpoints.protocol:_publish", without("_refuse_strange(...)")),
    ],
    f"{PROTOCOL}a_recorded_file_that_is_gone_is_named": [
        (
            "recorded-files-not-looked-for",
            "checkpoints.own_tables:OwnTable.fetch",
            instead("_ if _ is None else data_files.missing(...)", "[]"),
        ),
    ],
    f"{FOREIGN_CHANGES}a_log_entry_exchanged_for_another": [
        ("recorded-digest-not-compared", "checkpoints.protocol:_note", without("raise StateCorruptError(...)")),
    ],
    (f"{SIMULATOR}every_fault_of_a_batch_that_is_held", f"{PROTOCOL}a_held_batch_waits_for_a_ruling"): [
        ("held-results-published", "checkpoints.protocol:_due", always("_.status == 'committed'")),
    ],
    (f"{PROTOCOL}a_held_batch_waits_for_a_ruling", f"{SIMULATOR}every_fault_of_a_ruling"): [
        ("discarded-results-published", "checkpoints.protocol:_due", instead('("quality", *batch.left_out)', '("quality",)')),
        (
            "held-files-not-copied",
            "checkpoints.protocol:_copy_to_held",
            instead("_1.fetch(_2, _3, _4)", "_1.fetch(_2, _3, _4) if not _4 else None"),
        ),
    ],
    f"{PROTOCOL}a_held_batch_waits_for_a_ruling": [
        ("validations-under-one-name", "checkpoints.protocol:_due", instead('f"quality/{_}"', '"quality"')),
    ],
    f"{PLANS}a_run_with_nothing_new_notices_that_a_table_is_gone_or_another": [
        ("tables-unseen-by-a-run-with-nothing-new", "jobs.batch.planning:next_run", without("verify_table_versions(...)")),
    ],
    f"{CHUNKS}only_empty_chunks_are_left_out": [
        ("empty-chunks-for-spark", "windowing.columnar.rows:without_empty_chunks", instead("(_ for _ in _1 if _.num_rows)", "_1")),
    ],
    f"{FOREIGN_CHANGES}rows_that_others_append": [
        ("foreign-writes-accepted", "checkpoints.own_tables:_verify_table", without("raise refused(...)")),
        ("accept-changes-of-the-state", "checkpoints.own_tables:verify", without("_ not in REMEMBERED")),
    ],
    f"{FOREIGN_CHANGES}rows_that_others_delete_and_restore": [
        ("restored-rows-are-foreign", "checkpoints.own_tables:foreign_change", always("any(_.values()) and any(_.values())")),
    ],
    f"{PROTOCOL}a_clean_pipeline_is_verified": [
        ("own-batch-is-foreign", "checkpoints.own_tables:foreign_change", never("_batch_of(...) is not None")),
    ],
    f"{FOREIGN_CHANGES}a_table_that_is_gone_is_not_made_anew": [
        (
            "missing-table-accepted",
            "checkpoints.own_tables:check_table_version",
            instead("if _1 is None:\n    ...", "if _1 is None:\n    return"),
        ),
    ],
    f"{FOREIGN_CHANGES}a_table_whose_log_was_cut_off": [
        ("older-table-accepted", "checkpoints.own_tables:check_table_version", never("_.version < _.version")),
    ],
    f"{FOREIGN_CHANGES}another_table_in_its_place": [
        ("table-id-not-compared", "checkpoints.own_tables:check_table_version", never("_.table_id != _.table_id")),
    ],
    f"{FOREIGN_CHANGES}a_ledger_restored_from_an_older_copy": [
        ("unknown-batch-is-ours", "checkpoints.own_tables:_verify_table", instead("_1 >= _2.count", "_1 > _2.count")),
        ("landed-number-planned-again", "checkpoints.own_tables:refuse_committed", without("raise LedgerBehindError(...)")),
    ],
    f"{FOREIGN_CHANGES}a_ledger_that_is_gone": [
        ("orphans-accepted", "checkpoints.own_tables:verify", never("not _.count")),
    ],
    f"{PROTOCOL}what_another_batch_landed_is_not_taken_for_this_one": [
        ("later-batch-landed-unnoticed", "checkpoints.own_tables:OwnTable._checked", without("raise LedgerBehindError(...)")),
    ],
    f"{FOREIGN_CHANGES}what_rewrites_or_describes_is_no_change": [
        ("rewrites-are-changes", "checkpoints.own_tables:_change", always('bool(_.get("dataChange", _))')),
    ],
    f"{FOREIGN_CHANGES}rows_that_others_remove_while_a_batch_is_computed": [
        ("foreign-change-during-a-batch-recorded", "checkpoints.protocol:_check_tables", without("refuse_foreign(...)")),
    ],
    f"{FOREIGN_CHANGES}rows_that_others_remove_at_the_very_moment_of_a_commit_are_noticed_by_the_next": [
        (
            "foreign-change-before-the-commits-unseen",
            "checkpoints.own_tables:_verify_table",
            instead("since = before.version", "since = written.version"),
        ),
    ],
    f"{FOREIGN_CHANGES}rows_that_others_remove_before_the_commits_of_a_batch_are_restored_first": [
        ("commit-on-top-of-a-foreign-change", "checkpoints.protocol:_publish", never("not _ or _ in REMEMBERED")),
    ],
    f"{FOREIGN_CHANGES}changes_are_accepted_once_and_for_all": [
        ("accepted-changes-forgotten", "checkpoints.own_tables:_verify_table", without("_.note(_, None if _ else replace(...))")),
    ],
    f"{FOREIGN_CHANGES}rows_that_others_delete_after_a_compaction_and_restore": [
        ("restore-after-a-compaction-is-foreign", "checkpoints.own_tables:foreign_change", without("_.moved_in")),
    ],
    f"{FOREIGN_CHANGES}a_table_whose_first_log_entries_are_gone": [
        ("log-without-its-beginning", "checkpoints.own_tables:OwnTable.table_version", without("raise self._unreadable(...)")),
    ],
    f"{CURRENT}after_each_batch_the_table_has_the_newest_row_of_the_latest_view": [
        ("older-rows-not-searched", "checkpoints.current:CurrentView.compared", instead("(_1 < 0) | _2", "_1 < 0")),
        ("kept-rows-are-new", "checkpoints.current:AddedRows.narrow", always("_ < _.first_kept")),
        ("search-ends-too-soon", "checkpoints.current:SinkFiles.search", always("int(_.min()) > _")),
    ],
    f"{CURRENT}it_may_come_later_go_and_move": [
        ("stale-current-table-goes-on", "checkpoints.current:changes_of", always("own.batch == shown.batch")),
    ],
    f"{CURRENT}files_that_others_move_between_record_and_commit_are_made_again": [
        ("missing-current-table-not-made-again", "checkpoints.protocol:publish_pending", without("_make_again(...)")),
    ],
}
