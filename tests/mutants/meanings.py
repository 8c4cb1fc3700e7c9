"""What a spec means, and what is told of it: bugs that a fast test has to notice."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "no-limit-to-the-future",
        "windowing/spec.py",
        "= Duration(days=1)",
        "= None",
        ("tests/windowing/test_labels.py::test_an_event_may_be_a_day_in_the_future_unless_the_axis_is_no_time",),
    ),
    Mutant(
        "session-closed-at-its-end-by-kernels",
        "windowing/kernels/sessions.py",
        "    return min(reach + gap + 1, start",
        "    return min(reach + gap, start",
        ("tests/windowing/test_session_end.py::test_an_event_at_the_end_of_another_keys_session_and_its_own_is_not_late",),
    ),
    Mutant(
        "session-closed-at-its-end",
        "windowing/reference/event_windows.py",
        "        return span.end < watermark or (span.end == watermark and span.end == span.start + self._max)",
        "        return span.end <= watermark",
        ("tests/windowing/test_session_end.py::test_an_event_at_the_end_of_another_keys_session_and_its_own_is_not_late",),
    ),
    Mutant(
        "versions-of-closed-sessions-count",
        "windowing/slicing/replay.py",
        "if version not in ended and not live.isdisjoint(version.rows)",
        "if version not in ended",
        ("tests/windowing/test_session_end.py::test_versions_of_a_closed_session_are_forgotten",),
    ),
    Mutant(
        "versions-of-closed-sessions-count-in-the-reference",
        "windowing/reference/event_windows.py",
        "        return any(event.number in live for event in shown.events)",
        "        return bool(live) or bool(shown.events)",
        ("tests/windowing/test_session_end.py::test_versions_of_a_closed_session_are_forgotten",),
    ),
    Mutant(
        "shown-version-of-a-session-numbered-again",
        "windowing/kernels/fragments.py",
        "sessions.revision[slot] + (1 if sessions.shown[slot] else 0)",
        "sessions.revision[slot]",
        ("tests/jobs/test_session_batches.py::test_a_late_row_joins_two_sessions_that_have_been_shown",),
    ),
    Mutant(
        "stored-session-shown-again",
        "windowing/columnar/joined_sessions.py",
        "(fragments.last + gap < stage.closed_before + stage.ahead)",
        "(fragments.last + gap < stage.closed_before)",
        ("tests/jobs/test_session_batches.py::test_a_late_row_joins_two_sessions_that_have_been_shown",),
    ),
    Mutant(
        "late-rows-of-a-session-merged-beforehand",
        "windowing/columnar/session_fragments.py",
        "< closed + stage.ahead",
        "< closed",
        ("tests/jobs/test_session_batches.py::test_versions_of_a_batch_are_those_of_many",),
    ),
    Mutant(
        "session-closed-at-its-end-by-fragments",
        "windowing/kernels/fragments.py",
        "    while low < high and sessions.last[low] + gap < closed:",
        "    while low < high and sessions.last[low] + gap <= closed:",
        ("tests/jobs/test_session_batches.py::test_a_row_joins_a_session_that_ends_where_windows_are_closed",),
    ),
    Mutant(
        "pieces-closed-by-their-size-not-told-gone",
        "windowing/columnar/cut_sessions.py",
        "np.where(gone, (n_new < size) & (ending >= stage.closed), ",
        "np.where(gone, False, ",
        ("tests/jobs/test_session_batches.py::test_a_piece_that_is_closed_by_its_size_is_gone_though_its_last_row_is_within_a_gap",),
    ),
    Mutant(
        "instants-of-a-session-not-merged-once-they-are-passed",
        "windowing/columnar/cut_sessions.py",
        "(n_new > 0) | (size > 1))",
        "n_new > 0)",
        ("tests/jobs/test_session_batches.py::test_a_batch_reads_of_a_session_that_is_cut_one_fragment_and_the_latest_instants",),
    ),
    Mutant(
        "labels-by-order",
        "windowing/kernels/layout.py",
        (
            '        label if all(claimed[name] == 1 for name in names) else f"{label}_{_digest(atom)}"\n'
            "        for atom, label, names in zip(atoms, plain, claims, strict=True)\n"
        ),
        (
            '        label if all(claimed[name] == 1 for name in names) else f"{label}_{number}"\n'
            "        for number, (atom, label, names) in enumerate(zip(atoms, plain, claims, strict=True))\n"
        ),
        ("tests/windowing/test_labels.py::test_aggregates_that_differ_never_share_or_swap_columns",),
    ),
    Mutant(
        "filter-left-out-of-the-meaning",
        "windowing/spec.py",
        '        if self.source and self.source.filter:\n            kept["filter"] = self.source.filter\n',
        "",
        ("tests/windowing/test_spec.py::test_the_meaning_leaves_out_checks_and_schedule_and_paths",),
    ),
    Mutant(
        "redaction-off",
        "windowing/redaction.py",
        "    text = _URL.sub(_without_user, text)\n",
        "    return text\n",
        ("tests/windowing/test_redaction.py::test_a_credential_goes",),
    ),
    Mutant(
        "values-of-the-environment-told",
        "windowing/redaction.py",
        "    for written, value in sorted(filled.items(), key=lambda pair: -len(pair[1])):",
        "    for written, value in ():",
        ("tests/jobs/test_secrets.py::test_what_came_from_the_environment_is_not_told_wherever_it_stands",),
    ),
    Mutant(
        "written-out-credentials-accepted",
        "windowing/specfile.py",
        "        filling.look_for_credentials(value.get(table), (table,))\n",
        "        pass\n",
        ("tests/jobs/test_secrets.py::test_credentials_are_refused_where_they_are_written_out",),
    ),
)
