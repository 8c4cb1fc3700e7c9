"""Names of the columns that windowmill adds to a source's rows; a source must not have them, and conditions must not read them."""

from __future__ import annotations

from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, LATE, NUMBER_OF, ORDER, TIME, UNTIL_OF, WATERMARK_OF

#: Columns added to each row besides the event time: index of its file, index in the file, version, reason for quarantine.
FILE, ROW, VERSION, REASON = "_file", "_row", "_version", "_reason"
ADDED = (TIME, FILE, ROW, VERSION, REASON)
#: Temporary columns: URI of the row's file, whether a condition cannot be evaluated on the row, and what in it could not be read.
URI, FAILED, UNREAD = "_uri", "_ failed", "_ unread"
#: Name, in the quarantine and among the columns of a topic, of the text of what is no row at all.
CORRUPT = "_corrupt_record"
#: Column names that a source must not have: those above, and those that readers of Delta tables and :mod:`windowmill.jobs.layouts` add.
TAKEN = (
    *(*ADDED, URI, FAILED, UNREAD, NUMBER_OF, UNTIL_OF, WATERMARK_OF, CLOSED, LATE, ARRIVAL, ORDER),
    *("_of_file", "_refused", "_block", "_before", "_seen"),
)
