"""Pipelines over the results of others: bugs that a test has to notice."""

from tests.mutants.edits import instead, never, without

CHAINS = "tests/jobs/test_chains.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    "tests/jobs/test_chain_commands.py::test_results_are_complete_before_the_next_one_may_come": [
        ("ends-complete-through-the-next-one-but-one", "jobs.sources.chains:complete_from", instead("_1(shown)", "_1(shown + 10)")),
        ("starts-complete-by-ends", "jobs.sources.chains:complete_from", never("pipeline.time.column == START")),
    ],
    f"{CHAINS}a_batch_without_its_commit_to_the_sink_is_not_seen": [
        ("batch-without-its-commit-counts", "jobs.sources.chains:UpstreamSink.of", never('batch.status == "committed" and lacks')),
    ],
    f"{CHAINS}a_purge_of_both_levels_leaves_nothing_of_the_key": [
        ("windows-that-went-stay", "jobs.sources.chains:_changed_paths", instead('"remove"', '"removed"')),
    ],
    f"{CHAINS}a_chain_goes_on_where_a_process_has_died[1-input.corrected]": [
        ("corrections-say-what-the-input-reflects", "jobs.sources.chains:_Sync._commit", never("corrected is None")),
    ],
    f"{CHAINS}days_over_hours_over_minutes_are_those_of_one_pipeline_after_each_cut": [
        ("rows-behind-the-watermark-are-appended", "jobs.sources.chains:watermark_of", instead("last.outcome.watermark_by(_)", "BEFORE")),
        ("a-correction-is-an-append", "jobs.sources.delta_log:DeltaSource.versions", without("CORRECTION in commit")),
    ],
    f"{CHAINS}other_windows_are_other_rows": [
        ("rows-of-other-windows-taken", "jobs.sources.chains:_check_same", never("settings.get(_WINDOWS) != wanted")),
    ],
    f"{CHAINS}windows_that_are_final_are_left_until_they_are_restated": [
        ("final-windows-revised", "jobs.batch.planning:_left_through", instead("last.outcome.emitted", "None")),
    ],
}
