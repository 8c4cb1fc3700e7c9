"""What a plan pins, and what a retry takes up: bugs that a fast test has to notice."""

from tests.mutants.edits import always, instead, never, without

PLANS = "tests/jobs/test_plans.py::test_"
COLUMNS = "tests/jobs/test_columns.py::test_"
LEDGER = "tests/checkpoints/test_ledger.py::test_"
CODE = "tests/jobs/test_code.py::test_"
STEPS = "tests/jobs/test_row_steps.py::test_"
LOOKUPS = "tests/jobs/test_lookups.py::test_"
CHANGES = "tests/jobs/test_applied_changes.py::test_"

SETTINGS = "tests/jobs/test_changed_settings.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    f"{SETTINGS}a_longer_lateness_opens_no_window_again": [
        ("closed-windows-opened", "jobs.layouts.input:TableInput.rule", instead("(closed, AFTER)", "(BEFORE, AFTER)")),
    ],
    f"{SETTINGS}a_longer_disorder_revises_what_has_been_shown": [
        ("watermark-moved-back", "jobs.layouts.input:TableInput.rule", instead("(plan.watermark, AFTER)", "(BEFORE, AFTER)")),
    ],
    f"{SETTINGS}keys_of_live_rows_are_due_by_the_new_lateness": [
        ("keys-due-by-the-old-lateness", "jobs.layouts.carried:_kept", never("_ == 'live rows' and part.batch.rule != _")),
    ],
    f"{SETTINGS}final_becomes_revise": [
        ("complete-windows-never-shown", "jobs.batch.applying:_progress", instead("shown if _ and _ != _ else None", "None")),
        ("complete-windows-wait-for-rows", "jobs.batch.planning:lags_behind", never("before < watermark or _ is not None")),
    ],
    f"{SETTINGS}revise_becomes_final_and_closes_what_has_been_shown": [
        ("shown-windows-left-open", "jobs.batch.applying:_progress", instead("max(outcome.emitted, shown)", "outcome.emitted")),
    ],
    f"{SETTINGS}a_row_that_was_late_counts_in_the_windows_that_are_shown_later": [
        ("late-to-windows-not-shown", "jobs.layouts.lateness:judged_at", instead("np.minimum(_, rule.shown)", "watermark[behind]")),
    ],
    f"{SETTINGS}a_backfill_of_a_part_judges_rows_as_no_run_has": [
        ("a-backfill-by-other-settings-unnoticed", "jobs.batch.counted_rows:judged_otherwise", instead("bool(_) or any(_)", "False")),
    ],
    f"{SETTINGS}verify_recomputes_an_added_window_with_the_rows_of_the_quarantine_that_it_takes": [
        ("rows-of-the-quarantine-in-no-added-window", "jobs.verify.source_rows:RereadRows._kept_out", never("_.judges_late")),
    ],
    f"{SETTINGS}rows_of_the_quarantine_that_count_by_other_settings_are_no_difference_to_verify": [
        ("windows-filled-without-late-rows", "jobs.verify.source_rows:SourceFiles.of", never("plan.fills or _")),
    ],
    f"{SETTINGS}a_change_without_effect_is_none": [
        ("lengths-compared-by-their-texts", "windowing.spec:Pipeline.means", instead("_ == meaning_hash and _ and not _", "False")),
    ],
    f"{CHANGES}only_windows_after_the_instant_asked_for_are_filled": [
        ("rows-of-dropped-windows-replaced", "checkpoints.committer:ReplacedRange.within", never("self.windows is not None")),
        ("history-published-whole", "jobs.layouts.output:Published.of", instead("rows.filter(_)", "rows")),
        ("columns-of-new-aggregates-missed", "jobs.batch.compute:_computed", instead("widens = applies or _1", "widens = _1")),
    ],
    f"{CHANGES}rows_that_have_been_quarantined_are_not_quarantined_again": [
        ("future-rows-taken-by-a-changed-spec", "jobs.layouts.input:TableInput.of", never("plan.rereads and _ and _")),
    ],
    f"{STEPS}other_steps_and_filters_are_applied_to_all_of_history": [
        ("rows-left-out-before-stay-out", "jobs.layouts.input:TableInput.of", instead("not plan.reads_others", "True")),
    ],
    f"{STEPS}without_history_windows_that_are_open_get_the_rows_of_another_filter": [
        ("other-rows-from-the-old-state", "jobs.batch.applying:_from_state", never("changes.input_differs")),
    ],
    f"{STEPS}try_agrees_with_itself_and_refuses_rows_on_which_a_step_fails": [
        (
            "rows-on-which-a-step-fails-go-on",
            "jobs.sources.row_steps:RowSteps.computed",
            instead("found.failed & on", "found.failed & ~on"),
        ),
    ],
    f"{LOOKUPS}values_are_those_of_duckdbs_joins": [
        (
            "valid-only-after-its-time",
            "jobs.sources.lookups:_Index.places",
            instead("np.searchsorted(self.since, _, side='right')", "np.searchsorted(self.since, times.fill_null(0).to_numpy())"),
        ),
    ],
    f"{LOOKUPS}a_plan_pins_the_version_of_the_table": [
        ("newest-version-looked-up", "jobs.batch.steps:_Steps.__init__", instead("pinned(_, plan.lookups)", "runnable.pipeline")),
    ],
    f"{LOOKUPS}a_changed_table_is_taken_up_by_a_restatement": [
        ("rows-without-a-match-stay-quarantined", "jobs.batch.restating:counting_reasons", never("plan.lookup is not None")),
        ("values-before-a-change-forgotten", "jobs.batch.restating:touched_rows", instead("_looking_up_changes(...)", "()")),
    ],
    f"{LOOKUPS}a_row_that_goes_takes_with_it_what_it_looked_up_before_the_table_changed": [
        ("rows-that-go-leave-what-they-looked-up", "jobs.batch.planning:next_restatement", never("_ and 'lookups' in fields")),
    ],
    f"{LOOKUPS}a_looked_up_column_of_another_type_is_refused_before_any_work": [
        ("looked-up-columns-unchecked", "jobs.batch.planning:check_plan", without("_lookups().check_types(...)")),
    ],
    f"{LOOKUPS}a_restated_range_leaves_rows_without_a_window_in_it_in_quarantine": [
        ("rows-out-of-reach-taken", "jobs.batch.restating:touched_rows", instead("_in_reach(...)", "_usable(part)")),
    ],
    f"{STEPS}rows_that_filters_leave_out_are_counted": [
        ("filtered-rows-unread", "jobs.schedulers.local:survey", instead("stored - len(new.table)", "0")),
    ],
    f"{CHANGES}vouched_intervals_close_windows_to_the_rows_that_they_closed_them_to": [
        (
            "closed-as-by-the-last-batch",
            "jobs.layouts.input:_closed_by_file",
            instead("plan.found_closed is None", "plan.found_closed is None or plan.changes_spec"),
        ),
    ],
    f"{CHANGES}edited_code_is_a_change_of_what_uses_it": [
        ("edited-code-kept", "windowing.spec:compare", instead("_ or _.get(...)", "reason")),
    ],
    f"{PLANS}a_column_of_another_type_is_refused_by_the_next_batch": [
        ("columns-of-a-plan-unchecked", "jobs.batch.planning:check_plan", without("check_unchanged(...)")),
    ],
    f"{COLUMNS}what_would_change_results_is_refused": [
        ("columns-unchecked", "jobs.sources.columns:check_unchanged", always("_.name not in used")),
    ],
    f"{COLUMNS}a_name_that_has_passed_to_another_column_is_refused": [
        ("renamed-column-taken", "jobs.sources.columns:check_unchanged", without("_check_same(...)")),
    ],
    f"{PLANS}a_copy_of_the_source_that_others_have_written_to_is_refused": [
        ("copied-source-unnoticed", "jobs.batch.planning:pinned", without('"source_mark": _')),
    ],
    f"{PLANS}the_ledger_of_another_pipeline_is_refused": [
        ("another-pipelines-ledger-taken", "jobs.batch.planning:check_owner", never("_ not in (_.pipeline, _.renamed_from)")),
    ],
    f"{PLANS}a_source_that_was_rolled_back_or_exchanged_is_refused": [
        ("rolled-back-source-unnoticed", "jobs.batch.planning:source_of", never("_ and _.version < _.to_version")),
        ("exchanged-source-unnoticed", "jobs.batch.planning:source_of", never("_ and _.source_id != _.table_id")),
    ],
    f"{PLANS}own_tables_are_verified_before_each_plan": [
        ("verify-skipped-before-a-run", "jobs.batch.planning:next_run", without("check_tables(...)")),
        ("verify-skipped-before-a-backfill", "jobs.batch.planning:next_backfill", without("check_tables(...)")),
    ],
    f"{PLANS}a_plan_whose_number_has_landed_is_not_made": [
        ("refuse-committed-removed", "jobs.batch.planning:check_plan", without("refuse_committed(...)")),
    ],
    f"{PLANS}an_edited_module_is_refused_unless_it_is_accepted": [
        ("edited-modules-accepted", "jobs.batch.planning:check_tables", never("_.newest_kept and not _.code")),
    ],
    f"{PLANS}only_the_last_part_of_a_backlog_is_vouched_for": [
        ("interval-vouches-for-every-part", "jobs.batch.planning:next_run", always("_.through == _.version")),
    ],
    f"{PLANS}transactions_are_named_by_the_ledger_and_not_by_the_pipeline": [
        (
            "generation-left-out-of-app-id",
            "checkpoints.batches:Plan.app_id",
            instead('f"windowmill/{self.generation}/{_1}"', 'f"windowmill/{_1}"'),
        ),
        ("generation-of-each-question", "checkpoints.ledger:Ledger.generation", instead("self._new_generation", "uuid.uuid4().hex[:12]")),
    ],
    f"{LEDGER}a_changed_meaning_is_refused_and_changed_expectations_are_not": [
        ("meaning-not-compared", "checkpoints.ledger:Ledger.check_meaning", always("_ is None or _.means(...)")),
    ],
    f"{PLANS}a_plan_goes_on_from_what_the_last_batch_left": [
        ("progress-forgotten", "jobs.batch.planning:pinned", instead("_.emitted", "None")),
    ],
    f"{PLANS}a_backfill_reads_no_further_than_the_schedule_has_come": [
        ("backfill-without-a-watermark", "jobs.batch.planning:next_backfill", instead("None if last is None else _", "None")),
    ],
    f"{PLANS}a_later_interval_without_new_rows_moves_on_what_ends_by_then": [
        ("later-interval-of-open-windows", "jobs.sources.reading:moves_on", instead("(_1, _.closed(_2))", "(_1, _2)")),
    ],
    f"{CODE}rules_that_changed_after_the_batch_make_no_difference": [
        ("time-zones-without-their-past", "jobs.user_code:_zone_digest", instead("range(0, _, _WEEK_SECONDS)", "()")),
    ],
}
