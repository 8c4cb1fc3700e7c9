"""What commands behind one another show: bugs that a fast test has to notice."""

from tests.mutants.edits import always, before, instead, never, without

DAYS, CHANGED, VERIFIED = (f"tests/jobs/test_{name}.py::test_" for name in ("days_after", "changed_days", "verification"))

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    f"{DAYS}later_windows_of_restated_keys_count_changes_that_were_ignored": [
        (
            "state-of-restated-keys-left",
            "jobs.batch.restating:Restatement.of",
            instead("_ is None or any(_)", "False"),
        ),
    ],
    f"{CHANGED}restatements_and_backfills_leave_rows_of_windows_that_the_spec_has_dropped": [
        (
            "dropped-windows-retracted",
            "jobs.batch.restating:Restatement._shown_where",
            instead("' AND '.join([_, *_1])", "' AND '.join(['true', *_1])"),
        ),
        ("dropped-windows-replaced", "jobs.batch.window_history:has_dropped_windows", never("any(_)")),
    ],
    f"{CHANGED}a_restatement_leaves_rows_of_a_window_that_ended_before_the_history_that_another_meaning_of_it_was_asked_for": [
        ("windows-of-another-meaning-restated", "jobs.batch.restating:Restatement._restated", instead("_1 & ~_.to_numpy()", "_1")),
    ],
    f"{CHANGED}a_restatement_computes_rows_of_another_meaning_that_a_backfill_has_brought": [
        ("backfilled-windows-not-restated", "jobs.batch.window_history:left_out", never("_.range is not None")),
    ],
    f"{CHANGED}triggers_of_another_meaning_are_replaced_as_a_whole_or_the_changed_spec_is_refused": [
        ("triggers-numbered-again", "jobs.batch.applying:_check_windows", never("again and history != AXIS_BEGIN")),
    ],
    f"{DAYS}a_backfill_gives_revised_windows_that_are_shown_but_not_closed": [
        ("open-windows-not-backfilled", "jobs.layouts.input:_windows_of", instead("plan.watermark_by(rule)", "plan.emitted")),
        (
            "backfilled-by-rows-that-are-left",
            "jobs.layouts.input:_windows_of",
            never("_.range is not None and not _.builds_state"),
        ),
    ],
    f"{DAYS}sessions_go_on_from_the_rows_that_a_backfill_has_counted": [
        ("state-not-of-backfilled-rows", "jobs.batch.planning:next_backfill", never("_ and not all(...)")),
    ],
    f"{DAYS}empty_windows_of_a_key_that_comes_again_go_on_from_what_a_backfill_has_published": [
        ("empty-windows-behind-a-backfill-from-zero", "jobs.batch.corrections:renumbered", instead("_ if _ else []", "[]")),
    ],
    f"{DAYS}revisions_go_on_from_open_windows_that_a_backfill_alone_has_published": [
        (
            "open-windows-behind-a-backfill-from-zero",
            "jobs.batch.corrections:renumbered",
            instead("_1 == 'revise' and (_2 or _)", "_1 == 'revise' and _2"),
        ),
    ],
    f"{CHANGED}a_changed_spec_counts_no_change_that_the_batches_have_ignored": [
        ("ignored-changes-counted", "jobs.sources.reading:backfill_versions", never("_ == 'counted' and _ is not None and _ is not None")),
    ],
    f"{CHANGED}a_changed_spec_behind_a_restatement_that_moved_the_watermark_shows_what_has_been_shown": [
        ("shown-ahead-of-a-lagging-run", "jobs.layouts.input:TableInput.emission", never("(_ or _) and _ is not None")),
    ],
    f"{DAYS}a_restatement_behind_one_that_moved_the_watermark_shows_what_has_been_shown": [
        ("shown-ahead-by-a-restatement", "jobs.layouts.input:TableInput.emission", instead("_1 or plan.replaces_state", "_1")),
    ],
    f"{DAYS}a_row_that_the_filter_leaves_out_does_not_move_the_watermark": [
        (
            "watermark-moved-by-rows-left-out",
            "jobs.batch.restating:_chosen_by_filter",
            instead("_1.select(_2) if _ is None else _.evaluated(_, _, [], None).select(_)", "_1.select(_2)"),
        ),
    ],
    (
        f"{CHANGED}a_changed_spec_keeps_the_state_of_kept_windows_behind_a_restatement",
        f"{CHANGED}a_changed_spec_keeps_open_sessions_behind_a_restatement",
    ): [
        ("kept-state-built-anew", "jobs.batch.applying:next_apply", before("plan = _", "keeps = ()")),
        ("kept-sessions-built-anew", "jobs.batch.applying:next_apply", before("plan = _", "gaps = ()")),
    ],
    f"{DAYS}the_latest_view_shows_a_closed_session_beside_one_that_overlaps_it_and_was_revised": [
        (
            "moved-sessions-not-retracted",
            "windowing.columnar.sessions:advance",
            instead("(_1.results(_2), _1.retractions(_2))", "(_1.results(_2),)"),
        ),
    ],
    f"{DAYS}a_window_whose_bounds_late_rows_move_is_retracted": [
        ("moved-windows-not-retracted", "windowing.slicing.slicers:EmittedVersions._retracted", never("_ >= 0 and _ not in _")),
    ],
    f"{DAYS}rows_that_take_the_place_of_deleted_ones_are_corrections": [
        ("redelivered-rows-late", "jobs.batch.restating:_takes_place", never("bool(_)")),
    ],
    f"{DAYS}late_rows_behind_a_deletion_of_others_are_late_as_ever": [
        ("all-rows-behind-a-deletion-in-time", "jobs.batch.restating:_takes_place", instead("bool(_)", "len(late) > 0")),
    ],
    f"{CHANGED}maintenance_keeps_what_the_spec_that_runs_needs_while_the_file_has_changed": [
        ("maintenance-by-a-changed-spec", "checkpoints.ledger:Ledger.as_computed", instead("last is None or _", "True")),
    ],
    f"{DAYS}rows_that_take_the_place_of_deleted_ones_are_corrections_behind_other_commits": [
        ("redelivered-rows-behind-others-late", "jobs.batch.restating:last_redelivery", instead("last = version.version", "break")),
    ],
    f"{DAYS}late_takes_the_rows_that_missed_some_of_their_windows": [
        ("rows-that-missed-windows-left-out", "jobs.batch.counted_rows:were_missed", never("any(_)")),
    ],
    f"{CHANGED}a_new_window_is_not_filled_from_a_slice_that_it_begins_within": [
        ("edges-within-the-last-slice-missed", "jobs.batch.applying:_SliceCheck.of", instead("max(high, _.seen + 1)", "high")),
    ],
    f"{CHANGED}a_changed_spec_whose_kept_windows_would_count_late_rows_is_refused": [
        ("kept-windows-count-late-rows", "jobs.batch.counted_rows:refuse_uncounted", never("_ is not None and (_ or _)")),
        ("kept-windows-of-the-source-unknown", "jobs.batch.applying:kept_of_source", never("window.name not in _")),
    ],
    f"{CHANGED}a_changed_spec_whose_kept_windows_would_count_ignored_changes_is_refused": [
        ("kept-windows-count-ignored-changes", "jobs.batch.counted_rows:refuse_uncounted", never("kept and change is not None")),
    ],
    f"{CHANGED}a_changed_spec_behind_a_purge_counts_no_change_that_the_batches_have_ignored": [
        ("purge-counts-ignored-changes", "jobs.batch.counted_rows:refuse_uncounted", never("purge is not None and change is not None")),
        ("changes-of-other-keys-purged", "jobs.batch.purging:_ignores_others", instead("not all(_)", "False")),
        ("purged-changes-uncounted", "jobs.batch.counted_rows:uncounted_changes", never("not plan.ignores_others")),
        ("restatement-behind-a-purge-unknown", "jobs.batch.counted_rows:purged_since_read", without("_.recounts")),
    ],
    f"{DAYS}a_row_that_was_moved_ahead_of_all_counts_behind_a_backfill_that_read_its_change": [
        ("rows-moved-ahead-in-no-state", "jobs.batch.counted_rows:uncounted_changes", instead("_1 if ahead else min(_, _)", "_1")),
    ],
    f"{DAYS}a_row_that_no_batch_has_counted_moves_no_watermark_when_it_is_removed": [
        ("watermark-moved-by-removed-rows", "jobs.batch.restating:latest_inserted", instead('"after"', "None")),
    ],
    f"{VERIFIED}verify_does_not_judge_rows_of_the_quarantine_that_a_backfill_from_the_table_counts": [
        ("rows-of-the-quarantine-judged", "jobs.verify.check:verify", never("files.counts_late and _ in plain.refused")),
    ],
    f"{VERIFIED}verify_leaves_out_rows_that_an_earlier_meaning_of_their_window_has_published": [
        ("rows-of-an-earlier-spec-judged", "jobs.verify.check:_of_this_spec", never("_ != _.get(row.window)")),
    ],
    f"{VERIFIED}verify_leaves_out_columns_that_an_earlier_spec_did_not_have": [
        ("columns-of-an-earlier-spec-judged", "jobs.verify.check:_Comparing._add", always("_ not in lacking")),
    ],
    f"{VERIFIED}verify_goes_by_the_watermark_of_the_batches_where_the_newest_rows_are_gone": [
        ("watermark-of-the-source-as-it-is", "jobs.verify.check:_of_window", instead("final=True", "final=False")),
    ],
    (
        f"{CHANGED}a_correction_leaves_rows_of_a_window_that_a_variable_has_changed_since",
        f"{CHANGED}triggers_that_a_variable_has_changed_are_replaced_as_a_whole_or_the_changed_spec_is_refused",
        f"{VERIFIED}verify_leaves_out_rows_that_an_earlier_meaning_of_their_window_has_published[variable]",
    ): [
        ("changed-variables-unknown", "jobs.batch.window_history:redefined_by", instead("dict.fromkeys(_, _)", "{}")),
    ],
    f"{DAYS}a_held_batch_is_released_behind_maintenance_that_removes_the_log": [
        ("own-commit-taken-for-an-accepted-one", "checkpoints.ledger:Ledger.rule", always("_.batch != _.number")),
    ],
    f"{VERIFIED}verify_compares_rows_behind_a_changed_spec_that_was_abandoned": [
        ("rows-judged-by-an-abandoned-spec", "jobs.verify.check:_of_this_spec", instead("_.newest_kept", "ledger.batches()[-1]")),
    ],
    f"{VERIFIED}verify_goes_by_the_watermark_of_the_batches_where_the_newest_rows_are_gone[ticks]": [
        ("ticks-until-the-rows-that-are-left", "jobs.verify.check:_of_window", instead("max(_1)", "min(0, *_1)")),
    ],
    f"{VERIFIED}verify_compares_windows_with_policies_that_were_empty": [
        ("empty-windows-begin-somewhere", "jobs.verify.check:reaches_of", instead("row.end + 1", "max(row.start, row.end) + 1")),
    ],
    f"{DAYS}a_batch_that_numbers_published_triggers_anew_is_not_discarded": [
        ("triggers-of-discarded-batches-numbered-again", "jobs.batch.window_history:_numbered_anew", never("held.restates")),
    ],
    f"{CHANGED}a_trigger_of_a_tuple_at_the_watermark_of_a_changed_spec_is_revised": [
        (
            "triggers-at-the-watermark-left-out",
            "jobs.batch.window_history:_shown_after",
            instead("window.policies().triggers_by_tuples", "0"),
        ),
    ],
    f"{CHANGED}rows_before_a_history_that_is_ahead_of_the_watermark_are_corrected": [
        ("rows-before-a-history-ahead-left-out", "jobs.batch.window_history:_shown_after", instead("min(plan.history, _)", "plan.history")),
    ],
}
