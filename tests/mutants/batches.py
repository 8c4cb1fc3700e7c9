"""The steps of one batch, and who may take them: bugs that a fast test has to notice."""

from tests.mutants.edits import always, instead, never, without

STEPS = "tests/jobs/test_steps.py::test_"
FOLDERS = "tests/jobs/test_folders.py::test_"
EXCHANGE = "tests/jobs/test_exchange.py::test_"
SLICES = "tests/windowing/test_slices.py::test_"
JOBS_ARRIVAL = "tests/jobs/test_arrival.py::test_"
WINDOWING_ARRIVAL = "tests/windowing/test_arrival.py::test_"
SESSION_BATCHES = "tests/jobs/test_session_batches.py::test_"
REVISED_BATCHES = "tests/jobs/test_revised_batches.py::test_"
CALENDAR_BATCHES = "tests/jobs/test_calendar_batches.py::test_"
SAVEPOINTS = "tests/jobs/test_savepoints.py::test_"
RESTATEMENTS = "tests/jobs/test_restatements.py::test_"
GATE = "tests/expectations/test_gate.py::test_"
INTERVAL_BATCHES = "tests/jobs/test_interval_batches.py::test_"
MIXED_BATCHES = "tests/jobs/test_mixed_batches.py::test_"
DEDUCTING = "tests/windowing/test_deducting.py::test_"
DEDUCTED = "tests/spark/test_deducted_windows.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    f"{DEDUCTING}carries_and_borrows_pass_through_whole_limbs": [
        ("borrow-of-the-second-limb-lost", "windowing.kernels.two_stacks:_slide", without("_ == 1 and _1 == _2")),
        ("carry-into-a-full-limb-lost", "windowing.kernels.two_stacks:_slide", never("_ == 1 and _ == 0")),
    ],
    f"{DEDUCTING}sums_of_any_limbs_are_those_of_whole_numbers": [
        ("windows-that-go-back-continue", "windowing.kernels.two_stacks:_continues", without("reached <= stop")),
    ],
    f"{DEDUCTING}a_users_deduct_gives_what_combining_gives": [
        ("what-stays-deducted", "windowing.columnar.objects:_deducting", never("low < first")),
    ],
    f"{DEDUCTED}try_takes_two_operations_a_window": [
        ("deduct-never-called", "windowing.columnar.objects:_ranges", never("aggregate.deduct is not None")),
        ("rope-without-deduct", "windowing.aggregates.order:mergeable", always("aggregate.deduct is None")),
    ],
    f"{STEPS}a_backfill_of_a_running_pipeline_sets_no_rows_aside_again": [
        ("quarantined-again-by-a-backfill", "jobs.batch.steps:_Steps.record", never("self.plan.rereads and _ in self.changes")),
    ],
    f"{FOLDERS}a_file_that_was_read_and_has_changed_is_refused_or_ignored_with_its_rows": [
        ("ignored-changes-not-recorded", "jobs.batch.compute:_computed", without("rows_ignored=_")),
    ],
    f"{STEPS}rows_that_do_not_balance_are_refused": [
        (
            "log-left-out-of-the-balance",
            "jobs.layouts.output:check_balance",
            without("is_known and (_ > _ or (_ < _ and not may_be_fewer))"),
        ),
    ],
    f"{EXCHANGE}blocks_in_any_order_give_to_the_bit_what_rows_together_give": [
        (
            "blocks-in-any-order",
            "jobs.schedulers.exchange:_lifted",
            instead("sorted(blocks, key=lambda block: block[_RANK].as_py())", "blocks"),
        ),
    ],
    f"{SLICES}where_chunks_are_cut_does_not_depend_on_batches": [
        ("chunks-cut-where-batches-end", "windowing.columnar.slices:_chunks", instead("(_1, _2, CHUNK_ROWS)", "(_1, _2, room)")),
    ],
    f"{RESTATEMENTS}restatements_of_several_keys_at_one_version_keep_their_rows_apart": [
        ("rows-restated-with-numbers-of-others", "jobs.batch.restating:Restatement.write_rows", instead("rows_numbered(_, _)", "0")),
    ],
    f"{JOBS_ARRIVAL}each_row_is_judged_by_the_commits_before_its_own": [
        ("late-rows-on-time", "jobs.layouts.lateness:judged_at", instead("_1 = _2 < _3", "_1 = _2 < _3 - 1")),
        (
            "rows-of-a-commit-late-to-one-another",
            "windowing.watermark:first_of_commit",
            instead("np.maximum.accumulate(np.where(_, _1, 0))", "_1"),
        ),
        ("files-of-a-commit-late-to-one-another", "jobs.layouts.lateness:starts_of", instead("_ or _1", "_1")),
        ("closed-windows-take-rows", "jobs.layouts.lateness:judged_at", instead("_1.last_end <= _2", "_1.last_end < _2")),
    ],
    f"{WINDOWING_ARRIVAL}a_late_row_links_another_of_its_commit_to_an_open_session": [
        (
            "late-rows-linked-to-sessions-by-luck",
            "windowing.kernels.event_bounds:sessions",
            instead("suspects_of(_1, _2, _3, _4, True)", "suspects_of(_1, _2, _3, _4, False)"),
        ),
    ],
    f"{SESSION_BATCHES}a_late_row_links_another_of_its_commit_to_an_open_session": [
        ("late-fragments-linked-to-sessions-by-luck", "windowing.columnar.sessions:_joined", instead("-_1.first", "_1.first")),
    ],
    f"{WINDOWING_ARRIVAL}no_row_of_a_commit_completes_a_window_by_count_before_another_has_joined_it": [
        (
            "windows-by-count-completed-by-the-latest",
            "windowing.kernels.event_bounds:_windows_of_key",
            instead("suspects_of(_1, _2, _3, _4, False)", "suspects_of(_1, _2, _3, _4, True)"),
        ),
    ],
    f"{SESSION_BATCHES}a_late_row_joins_two_sessions_that_have_been_shown": [
        ("sessions-revised-row-by-row", "windowing.kernels.event_bounds:sessions_of", without("_.moments[_] != _")),
    ],
    f"{REVISED_BATCHES}late_rows_of_a_commit_revise_a_window_once_though_they_are_in_several_slices": [
        (
            "windows-revised-slice-by-slice",
            "windowing.columnar.grid_windows:revisions_of",
            instead("~(_ & np.append(...)[:_1])", "np.ones(_1, np.bool_)"),
        ),
    ],
    f"{WINDOWING_ARRIVAL}late_rows_that_come_together_revise_a_window_once": [
        ("windows-revised-row-by-row", "jobs.layouts.lateness:judged_at", instead("commits_of(_1)", "_1")),
    ],
    f"{CALENDAR_BATCHES}windows_of_all_kinds_share_their_slices": [
        ("closed-for-the-last-window-only", "windowing.grids:closing_of", instead("first_ends.min", "first_ends.max")),
    ],
    f"{CALENDAR_BATCHES}a_month_is_stored_as_one_slice_and_read_when_it_ends": [
        (
            "rows-at-an-edge-of-a-calendar-before-it",
            "windowing.slicing.edges:CalendarGrid.slice_start",
            instead("'right'", "'left'"),
        ),
    ],
    f"{CALENDAR_BATCHES}batches_are_those_of_the_oracle": [
        (
            "slices-of-long-windows-forgotten",
            "windowing.slicing.edges:CalendarGrid.first_start_after",
            instead("_1.ends", "_1.starts"),
        ),
    ],
    f"{SAVEPOINTS}runs_after_a_restoration_give_what_undisturbed_ones_give[slices]": [
        ("totals-of-undone-batches-kept", "checkpoints.batches:RestorePlan.totals_after", instead("self.totals", "before")),
    ],
    f"{SAVEPOINTS}a_pipeline_goes_back_twice_and_not_to_what_was_undone": [
        ("undone-batches-stand", "checkpoints.batches:effective_batches", instead("_1.number <= _2", "True")),
    ],
    f"{SAVEPOINTS}a_savepoint_outlives_vacuum_and_compaction": [
        (
            "rows-of-undone-batches-kept-in-files-of-both",
            "checkpoints.rewriting:UndoneFiles.stays",
            instead("pc.less_equal(_1, _2.after)", "pc.less_equal(_1, _2.after + 1)"),
        ),
    ],
    f"{JOBS_ARRIVAL}rows_of_a_snapshot_are_never_late": [
        (
            "snapshot-rows-late",
            "jobs.layouts.lateness:watermarks_at_arrival",
            instead("np.where(_ < _.snapshot_files, AXIS_BEGIN, _1)", "_1"),
        ),
    ],
    f"{GATE}a_batch_that_loses_many_rows_is_not_passed": [
        ("quarantined-rows-without-limit", "expectations.suites:rules", instead("pipeline.quarantine.hold", "None")),
    ],
    f"{STEPS}whatever_writes_waits_for_the_run_that_is_under_way": [
        ("run-without-the-lease", "jobs.batch.loop:leased", instead("lease(...)", "tables_kept()")),
        ("maintenance-without-the-lease", "jobs.commands.maintenance_command:maintain", instead("lease(...)", 'progress.step("all", "")')),
    ],
    f"{STEPS}a_lease_cannot_be_taken_by_removing_its_file": [
        (
            "lease-on-a-file",
            "checkpoints.protocol:lease",
            instead("os.open(_1, os.O_RDONLY | os.O_DIRECTORY)", 'os.open(_1 / ".lease", os.O_RDWR | os.O_CREAT)'),
        ),
    ],
    f"{GATE}a_rule_that_cannot_be_evaluated_is_broken_and_weighs_as_much": [
        ("broken-rule-passes", "expectations.gate:validate", instead('_1.outcome != "passed"', '_1.outcome == "failed"')),
    ],
    f"{REVISED_BATCHES}revisions_are_those_of_the_oracle": [
        ("closed-windows-revised", "windowing.kernels.slices:late_windows", instead("max(_1, min(_ - _, _), _2)", "max(_1, _2)")),
    ],
    f"{REVISED_BATCHES}a_window_that_ends_at_the_watermark_is_revised": [
        (
            "windows-that-end-at-the-watermark-not-revised",
            "jobs.layouts.lateness:judged_at",
            instead("(_1.first_end <= _2, _2)", "(_1.first_end < _2, _2)"),
        ),
    ],
    f"{REVISED_BATCHES}a_batch_reads_the_slices_of_the_windows_that_its_late_rows_revise": [
        (
            "slices-of-revised-windows-not-read",
            "jobs.layouts.slices:SlicePart._wanted_slices",
            instead("_1 if _ is None else min(_1, _)", "_1"),
        ),
    ],
    f"{INTERVAL_BATCHES}a_batch_reads_the_events_that_reach_into_the_windows_that_its_late_rows_revise": [
        (
            "events-that-reach-into-revised-windows-not-read",
            "jobs.layouts.slices:SlicePart._wanted_slices",
            instead("replace(_1, reaching=_2.spans_of_starts(_, _3))", "replace(_1, reaching=_2.spans_of_starts(after, _3))"),
        ),
    ],
    f"{INTERVAL_BATCHES}a_late_event_revises_each_window_that_it_overlaps": [
        (
            "late-events-revise-where-they-begin-alone",
            "windowing.columnar.grid_windows:revisions_of",
            instead("np.flatnonzero(_ & (_.reaching == 1))", "np.empty(0, np.int64)"),
        ),
    ],
    f"{REVISED_BATCHES}a_batch_reads_the_nodes_of_the_long_windows_that_its_late_rows_revise": [
        (
            "late-rows-in-nodes-before-their-windows-are-closed",
            "windowing.columnar.grid_windows:whole_nodes",
            instead("_1.closed_through", "_1.through"),
        ),
    ],
    f"{REVISED_BATCHES}late_rows_of_a_commit_share_a_row_of_the_state_and_a_revision": [
        (
            "late-rows-of-a-batch-arrive-together",
            "windowing.columnar.grid_windows:_merged",
            instead("np.where(_ == IN_TIME, _1 - AFTER, _)", "_1"),
        ),
    ],
    f"{MIXED_BATCHES}a_row_is_too_late_only_if_every_part_refuses_it[by_every_part]": [
        ("too-late-for-one-part-is-too-late", "jobs.schedulers.local:refused_by_all", instead("np.intersect1d", "np.union1d")),
    ],
    f"{MIXED_BATCHES}a_row_is_too_late_only_if_every_part_refuses_it[counted_by_a_grid]": [
        ("grids-not-asked-about-late-rows", "jobs.schedulers.local:refused_by_all", without("not _ or not len(_)")),
    ],
    f"{MIXED_BATCHES}a_row_is_too_late_only_if_every_part_refuses_it[between_windows]": [
        ("rows-between-windows-refused", "jobs.layouts.lateness:too_late_among", without("_ > _")),
    ],
}
