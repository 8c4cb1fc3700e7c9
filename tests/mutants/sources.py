"""What is read of a source: bugs that a fast test has to notice."""

from tests.mutants.edits import always, before, instead, never, without

FILE_SCANS = "tests/spark/test_file_scans.py::test_"
PLAIN_ROWS = "tests/spark/test_plain_rows.py::test_"
READING = "tests/jobs/test_reading.py::test_"
COLUMNS = "tests/jobs/test_columns.py::test_"
SOURCES = "tests/spark/test_sources.py::test_"
PLANS = "tests/jobs/test_plans.py::test_"
FILE_SURVEYS = "tests/jobs/test_file_surveys.py::test_"
FOLDERS = "tests/jobs/test_folders.py::test_"

#: Name, function and edit of each mutant, by the tests of which one has to fail.
MUTANTS = {
    f"{FOLDERS}a_run_that_dies_reads_no_file_twice_and_none_less": [
        ("files-numbered-anew-after-a-crash", "jobs.batch.loop:Turn.execute", without("source.remember(_)")),
    ],
    f"{FOLDERS}files_are_versions_in_the_order_in_which_they_were_first_seen": [
        ("files-in-order-of-path", "jobs.sources.folder:_events", instead('(_.mtime_ns, _1, _.size, "added")', '(0, _1, 1, "added")')),
    ],
    f"{FOLDERS}a_file_that_was_read_and_has_changed_is_refused_or_ignored_with_its_rows": [
        ("changed-files-not-seen", "jobs.sources.folder:_events", always("_ and _ == (_.size_bytes, _.mtime_ns)")),
        ("removed-files-not-seen", "jobs.sources.folder:_events", always("_ is None and not was_there")),
    ],
    f"{FOLDERS}files_that_are_being_written_are_not_read": [
        ("hidden-folders-read", "jobs.sources.folder:_is_data", without("not hidden")),
        ("unfinished-files-read", "jobs.sources.folder:_is_data", without("not name.endswith(_)")),
    ],
    f"{FOLDERS}the_record_of_files_is_fenced_checked_and_merged": [
        ("damaged-record-of-files-taken", "checkpoints.source_files:_check", never("_ or not _")),
    ],
    f"{FILE_SCANS}more_than_a_scan_is_sparks": [
        ("computed-columns-read-from-files", "jobs.spark.file_ranges:_reads_files", without("not _.outputSet().subsetOf(_)")),
    ],
    f"{FILE_SCANS}dates_of_the_old_calendar_are_sparks": [
        ("days-of-the-old-calendar-read-from-files", "jobs.sources.plain_files:OpenFile.__init__", without("_LEGACY in _")),
    ],
    f"{PLAIN_ROWS}int96_before_1900_is_left_to_spark": [
        ("instants-of-the-old-calendar-read-from-plain-files", "jobs.sources.plain_files:OpenFile._check_int96", without('_["min"] < _')),
    ],
    f"{PLAIN_ROWS}files_with_deletion_vectors_are_not_plain": [
        (
            "plain-files-with-deletion-vectors",
            "jobs.sources.delta_log:DeltaSource.plain_files",
            without("_.as_of is not None and self._has_deleted_rows(...)"),
        ),
    ],
    f"{READING}a_backfill_waits_for_a_run_where_the_table_can_only_be_read_with_rows_that_no_run_has_read": [
        ("lost-version-to-be-rebuilt", "jobs.sources.reading:_last_read", without("raise OutOfTurnError(...)")),
    ],
    f"{READING}a_backfill_of_which_no_run_brings_back_the_files_is_not_to_wait_for_one": [
        ("lost-files-to-wait-for", "jobs.sources.reading:_last_read", without("_exists(source, source.version)")),
    ],
    f"{READING}a_snapshot_with_deletion_vectors_is_read_by_delta": [
        ("deletion-vectors-ignored", "jobs.sources.reading:reading_of", never("_ and _.deletion_vectors")),
    ],
    f"{READING}a_version_that_adds_a_deletion_vector_changes_rows": [
        ("deletion-vectors-are-appends", "jobs.sources.delta_log:DeltaSource.versions", without('any(_.get("deletionVector") for _ in _)')),
    ],
    f"{READING}a_restore_brings_back_rows_that_have_been_read": [
        ("restored-rows-are-appends", "jobs.sources.delta_log:DeltaSource.versions", without('_ == "RESTORE"')),
        ("changed-rows-taken", "jobs.sources.reading:_appended", instead("return ()", "return version.added")),
    ],
    f"{READING}compaction_alone_leaves_the_order_of_arrival": [
        ("compaction-brings-rows", "jobs.sources.delta_log:DeltaSource.versions", without('_["add"].get("dataChange", True)')),
    ],
    f"{COLUMNS}files_are_read_by_the_names_that_they_use": [
        ("column-mapping-ignored", "jobs.sources.columns:physical_name", instead("_.metadata.get(PHYSICAL, _1)", "_1")),
    ],
    f"{COLUMNS}no_path_is_a_pattern": [
        ("globs-unescaped", "jobs.spark.spark_settings:literal_path", instead("re.sub(_, _, _1)", "_1")),
    ],
    f"{READING}files_are_known_by_their_full_path": [
        ("partitions-left-out-of-paths", "jobs.sources.delta_log:_file", instead("unquote(_1)", 'unquote(_1).rpartition("/")[2]')),
    ],
    f"{SOURCES}files_of_one_name_in_many_partitions": [
        (
            "files-joined-by-base-name",
            "jobs.sources.spark_files:_with_file_columns",
            before(
                "_ = _file_columns(...)",
                'uris, rows = [uri.rpartition("/")[2] for uri in uris], rows.withColumn(URI, F.substring_index(URI, "/", -1))',
            ),
        ),
    ],
    (
        f"{PLANS}a_backfill_reads_no_further_than_the_schedule_has_come",
        f"{READING}a_backfill_by_event_time_reads_what_has_been_committed",
    ): [
        ("backfill-reads-on", "jobs.sources.reading:backfill_versions", instead("_[-1].to_version", "source.version")),
    ],
    f"{READING}a_backfill_reads_changed_rows_as_they_are_now_and_later_ones_in_the_order_of_the_log": [
        ("old-values-brought-back", "jobs.sources.reading:_current", instead("_ and _ is None and _ is None", "known")),
    ],
    f"{READING}a_file_that_is_gone_is_found_before_anything_is_planned": [
        ("missing-files-planned", "jobs.sources.reading:check_readable", without("raise SourceRangeGoneError(...)")),
    ],
    f"{READING}changed_rows_are_refused_or_ignored_and_counted": [
        ("ignored-changes-not-counted", "jobs.sources.reading:reading_of", without("_ += _.rows_changed")),
        (
            "ignored-changes-end-the-batch",
            "jobs.sources.reading:reading_of",
            before("_ += _appended(...)", 'if version.changes and runnable.source.changes == "ignore": break'),
        ),
    ],
    f"{READING}a_first_batch_reads_the_snapshot_where_arrival_is_no_longer_told": [
        ("order-of-arrival-taken-as-told", "jobs.sources.reading:_first", never("not _log_order_known(...)")),
    ],
    f"{READING}a_reader_feature_that_is_not_known_is_refused_by_name": [
        ("unknown-features-read", "checkpoints.delta_tables:check_readable_features", without('raise SourceFeatureError(f"...")')),
    ],
    f"{READING}a_first_batch_takes_rows_in_the_order_of_the_log": [
        ("long-backlog-in-one-batch", "jobs.sources.reading:_within", instead("_.version - 1", "through")),
    ],
    f"{READING}dates_before_year_1_do_not_keep_a_table_from_being_read": [
        ("statistics-read-as-python-dates", "jobs.sources.delta_log:DeltaSource.snapshot", instead("_1.select([_ for _ in _ if _])", "_1")),
    ],
    f"{FILE_SURVEYS}only_files_that_may_hold_the_greatest_time_are_read": [
        ("instants-of-statistics-not-cut", "checkpoints.delta_tables:", instead("CUT_OFF_US = 999", "CUT_OFF_US = 0")),
    ],
    f"{FILE_SURVEYS}files_without_tight_bounds_are_read": [
        ("wide-bounds-of-statistics-used", "jobs.sources.delta_log:span", never('_.get("tightBounds") is False')),
    ],
    f"{FILE_SURVEYS}files_before_a_late_row_are_read_as_far_as_they_tell_the_watermark": [
        ("files-before-late-rows-not-read", "jobs.schedulers.file_rows:undecided", instead("np.flatnonzero(...).tolist()", "[]")),
    ],
    f"{FILE_SURVEYS}times_that_may_not_be_accepted_are_read": [
        (
            "statistics-of-times-that-may-not-be-accepted-used",
            "jobs.schedulers.file_rows:bounds",
            instead("_1 is not None and _ and _", "_1 is not None"),
        ),
    ],
    f"{FILE_SCANS}int96_before_year_1_is_sparks": [
        ("int96-without-its-sign", "jobs.sources.plain_files:OpenFile._check_int96", without('_["max"] > _LAST_MS')),
    ],
}
