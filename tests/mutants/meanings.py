"""What a spec means, and what is told of it: bugs that a fast test has to notice."""

from tests.mutants.edits import instead, never, without

LABELS = "tests/windowing/test_labels.py::test_"
SESSION_END = "tests/windowing/test_session_end.py::test_"
SESSION_BATCHES = "tests/jobs/test_session_batches.py::test_"
SPEC = "tests/windowing/test_spec.py::test_"
REDACTION = "tests/windowing/test_redaction.py::test_"
SECRETS = "tests/jobs/test_secrets.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    f"{LABELS}an_event_may_be_a_day_in_the_future_unless_the_axis_is_no_time": [
        ("no-limit-to-the-future", "windowing.fields:Time", instead("Duration(days=1)", "None")),
    ],
    f"{SESSION_END}an_interval_event_at_the_end_of_its_keys_session_is_not_late": [
        ("session-closed-at-its-end-by-kernels", "windowing.kernels.event_bounds:_closes_at", without("1")),
    ],
    f"{SESSION_END}an_event_at_the_end_of_another_keys_session_and_its_own_is_not_late": [
        (
            "session-closed-at-its-end",
            "windowing.reference.windows:SessionWindows.complete",
            instead("_1.end < _2 or _", "_1.end <= _2"),
        ),
    ],
    f"{SESSION_END}versions_of_a_closed_session_are_forgotten": [
        ("versions-of-closed-sessions-count", "windowing.slicing.slicers:EmittedVersions.resolve", without("not _.isdisjoint(...)")),
        (
            "versions-of-closed-sessions-count-in-the-reference",
            "windowing.reference.windows:SessionWindows.takes",
            instead("any(_ in _1 for _ in _2)", "bool(_1) or bool(_2)"),
        ),
    ],
    f"{SESSION_BATCHES}a_late_row_joins_two_sessions_that_have_been_shown": [
        ("shown-version-of-a-session-numbered-again", "windowing.kernels.event_bounds:_join", instead("max(_1, _2 + _)", "max(_1, _2)")),
        (
            "stored-session-shown-again",
            "windowing.columnar.sessions:_joined",
            instead("_.shown_before", "stage.closed_before"),
        ),
    ],
    f"{SESSION_BATCHES}versions_of_a_batch_are_those_of_many": [
        ("late-rows-of-a-session-merged-beforehand", "windowing.columnar.sessions:SessionInput.of", never("WATERMARK_OF in _")),
    ],
    f"{SESSION_BATCHES}a_row_joins_a_session_that_ends_where_windows_are_closed": [
        (
            "session-closed-at-its-end-by-fragments",
            "windowing.kernels.event_bounds:_settle",
            instead("_1.last[_2] + _3 < _4", "_1.last[_2] + _3 <= _4"),
        ),
    ],
    f"{SESSION_BATCHES}a_piece_that_is_closed_by_its_size_is_gone_though_its_last_row_is_within_a_gap": [
        ("pieces-closed-by-their-size-not-told-gone", "windowing.columnar.sessions:cut", never("(_ < _) & (_ >= _.closed)")),
    ],
    f"{SESSION_BATCHES}a_batch_reads_of_a_session_that_is_cut_one_fragment_and_the_latest_instants": [
        ("instants-of-a-session-not-merged-once-they-are-passed", "windowing.columnar.sessions:cut", without("_ > 1")),
    ],
    f"{LABELS}aggregates_that_differ_never_share_or_swap_columns": [
        ("labels-by-order", "windowing.kernels.layout:label_atoms", instead('f"{_1}_{_digest(_2)}"', 'f"{_1}_{list(atoms).index(_2)}"')),
    ],
    f"{SPEC}the_meaning_leaves_out_checks_and_schedule_and_paths": [
        ("filter-left-out-of-the-meaning", "windowing.spec:Pipeline.meaning", never("self.source and self.source.filter")),
    ],
    f"{REDACTION}a_credential_goes": [
        ("redaction-off", "windowing.redaction:redacted", instead("_1 = _URL.sub(_, _1)", "return _1")),
    ],
    f"{SECRETS}what_came_from_the_environment_is_not_told_wherever_it_stands": [
        ("values-of-the-environment-told", "windowing.redaction:as_written", instead("sorted(...)", "()")),
    ],
    f"{SECRETS}credentials_are_refused_where_they_are_written_out": [
        ("written-out-credentials-accepted", "windowing.specfile:_read", without("_.look_for_credentials(...)")),
    ],
}
