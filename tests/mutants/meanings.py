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
        "windowing/specfile.py",
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
