"""What is read of a source: bugs that a fast test has to notice."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "computed-columns-read-from-files",
        "jobs/spark/file_ranges.py",
        " or not plan.outputSet().subsetOf(relation.outputSet())",
        "",
        ("tests/spark/test_file_scans.py::test_more_than_a_scan_is_sparks",),
        spark=True,
    ),
    Mutant(
        "days-of-the-old-calendar-read-from-files",
        "jobs/sources/plain_files.py",
        "if _LEGACY in own or own.get(",
        "if own.get(",
        ("tests/spark/test_file_scans.py::test_dates_of_the_old_calendar_are_sparks",),
        spark=True,
    ),
    Mutant(
        "instants-of-the-old-calendar-read-from-plain-files",
        "jobs/sources/plain_files.py",
        'if span["min"] is not None and (span["min"] < since_ms or',
        'if span["min"] is not None and (',
        ("tests/spark/test_plain_rows.py::test_int96_before_1900_is_left_to_spark",),
        spark=True,
    ),
    Mutant(
        "plain-files-with-deletion-vectors",
        "jobs/sources/delta_log.py",
        " or (reading.as_of is not None and self._has_deleted_rows(reading.as_of))",
        "",
        ("tests/spark/test_plain_rows.py::test_files_with_deletion_vectors_are_not_plain",),
        spark=True,
    ),
    Mutant(
        "deletion-vectors-ignored",
        "jobs/sources/reading.py",
        "as_of = reach.snapshot if files and source.deletion_vectors else None",
        "as_of = None",
        ("tests/jobs/test_reading.py::test_a_snapshot_with_deletion_vectors_is_read_by_delta",),
    ),
    Mutant(
        "deletion-vectors-are-appends",
        "jobs/sources/delta_log.py",
        'any(add.get("deletionVector") for add in adds)',
        "False",
        ("tests/jobs/test_reading.py::test_a_version_that_adds_a_deletion_vector_changes_rows",),
    ),
    Mutant(
        "restored-rows-are-appends",
        "jobs/sources/delta_log.py",
        ' or (operation == "RESTORE" and bool(adds))',
        "",
        ("tests/jobs/test_reading.py::test_a_restore_brings_back_rows_that_have_been_read",),
    ),
    Mutant(
        "compaction-brings-rows",
        "jobs/sources/delta_log.py",
        'adds = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]',
        'adds = [action["add"] for action in actions if "add" in action]',
        ("tests/jobs/test_reading.py::test_compaction_alone_leaves_the_order_of_arrival",),
    ),
    Mutant(
        "column-mapping-ignored",
        "jobs/sources/columns.py",
        "return str(field.metadata.get(PHYSICAL, field.name))",
        "return str(field.name)",
        ("tests/jobs/test_columns.py::test_files_are_read_by_the_names_that_they_use",),
    ),
    Mutant(
        "globs-unescaped",
        "jobs/spark/object_storage.py",
        '    return re.sub(r"([\\[\\]{}*?\\\\])", r"\\\\\\1", full_path(root, path))',
        "    return full_path(root, path)",
        ("tests/jobs/test_columns.py::test_no_path_is_a_pattern",),
    ),
    Mutant(
        "partitions-left-out-of-paths",
        "jobs/sources/delta_log.py",
        '        path=unquote(add["path"]),\n        version=version,\n        size_bytes=add["size"],',
        '        path=unquote(add["path"]).rpartition("/")[2],\n        version=version,\n        size_bytes=add["size"],',
        ("tests/jobs/test_reading.py::test_files_are_known_by_their_full_path",),
    ),
    Mutant(
        "files-joined-by-base-name",
        "jobs/sources/delta_rows.py",
        '    uris = _uris(rows.sparkSession, root, files)\n    rows = rows.selectExpr("*", f"_metadata.file_path',
        (
            '    uris = [uri.rpartition("/")[2] for uri in _uris(rows.sparkSession, root, files)]\n'
            '    rows = rows.selectExpr("*", f"_metadata.file_name'
        ),
        ("tests/spark/test_sources.py::test_files_of_one_name_in_many_partitions",),
        spark=True,
    ),
    Mutant(
        "backfill-reads-on",
        "jobs/sources/reading.py",
        "    first, through = before[0], before[-1].to_version\n",
        "    first, through = before[0], source.version\n",
        (
            "tests/jobs/test_plans.py::test_a_backfill_reads_no_further_than_the_schedule_has_come",
            "tests/jobs/test_reading.py::test_a_backfill_by_event_time_reads_what_has_been_committed",
        ),
    ),
    Mutant(
        "missing-files-planned",
        "jobs/sources/reading.py",
        "        if gone is not None:",
        "        if False:",
        ("tests/jobs/test_reading.py::test_a_file_that_is_gone_is_found_before_anything_is_planned",),
    ),
    Mutant(
        "ignored-changes-not-counted",
        "jobs/sources/reading.py",
        "        ignored += version.rows_changed\n",
        "",
        ("tests/jobs/test_reading.py::test_changed_rows_are_refused_or_ignored_and_counted",),
    ),
    Mutant(
        "ignored-changes-end-the-batch",
        "jobs/sources/reading.py",
        "        files += _appended(runnable, source, version)\n",
        (
            '        if version.changes and runnable.source.changes == "ignore":\n'
            "            break\n"
            "        files += _appended(runnable, source, version)\n"
        ),
        ("tests/jobs/test_reading.py::test_ignored_changes_end_nothing",),
    ),
    Mutant(
        "changed-rows-taken",
        "jobs/sources/reading.py",
        '    if runnable.source.changes == "ignore":\n        return ()\n',
        '    if runnable.source.changes == "ignore":\n        return version.added\n',
        ("tests/jobs/test_reading.py::test_a_restore_brings_back_rows_that_have_been_read",),
    ),
    Mutant(
        "order-of-arrival-taken-as-told",
        "jobs/sources/reading.py",
        "    if not _log_order_known(source, versions):\n        return whole\n",
        "",
        ("tests/jobs/test_reading.py::test_a_first_batch_reads_the_snapshot_where_arrival_is_no_longer_told",),
    ),
    Mutant(
        "unknown-features-read",
        "checkpoints/features.py",
        "    if unknown:\n        raise SourceFeatureError(",
        "    if False:\n        raise SourceFeatureError(",
        ("tests/jobs/test_reading.py::test_a_reader_feature_that_is_not_known_is_refused_by_name",),
    ),
    Mutant(
        "long-backlog-in-one-batch",
        "jobs/sources/reading.py",
        "            return version.version - 1\n    return through",
        "            return through\n    return through",
        ("tests/jobs/test_reading.py::test_a_first_batch_takes_rows_in_the_order_of_the_log",),
    ),
    Mutant(
        "statistics-read-as-python-dates",
        "jobs/sources/delta_log.py",
        "added.select([name for name in wanted if name in added.schema.names]).append_column(",
        "added.append_column(",
        ("tests/jobs/test_reading.py::test_dates_before_year_1_do_not_keep_a_table_from_being_read",),
    ),
    Mutant(
        "instants-of-statistics-not-cut",
        "jobs/sources/statistics.py",
        "CUT_US = 999",
        "CUT_US = 0",
        ("tests/jobs/test_file_surveys.py::test_only_files_that_may_hold_the_greatest_time_are_read",),
    ),
    Mutant(
        "wide-bounds-of-statistics-used",
        "jobs/sources/statistics.py",
        'if found.get("tightBounds") is False:',
        "if False:",
        ("tests/jobs/test_file_surveys.py::test_bounds_that_are_too_wide_are_not_used",),
    ),
    Mutant(
        "files-before-late-rows-not-read",
        "jobs/ways/file_survey.py",
        "        for number in np.flatnonzero(late).tolist():",
        "        for number in []:",
        ("tests/jobs/test_file_surveys.py::test_files_before_a_late_row_are_read_as_far_as_they_tell_the_watermark",),
    ),
    Mutant(
        "statistics-of-times-that-may-not-be-accepted-used",
        "jobs/ways/file_survey.py",
        "if span is not None and least <= span[0] and span[2] <= greatest else None",
        "if span is not None else None",
        ("tests/jobs/test_file_surveys.py::test_times_that_may_not_be_accepted_are_read",),
    ),
    Mutant(
        "int96-without-its-sign",
        "jobs/sources/plain_files.py",
        ' or span["max"] > _LAST_MS',
        "",
        ("tests/spark/test_file_scans.py::test_int96_before_year_1_is_sparks",),
        spark=True,
    ),
)
