"""Names of the columns that windowmill adds to rows of the source, to partials, and to rows of the state."""

from __future__ import annotations

#: Of a row: its event time, and the end of an interval event.
TIME, UNTIL_OF = "_time", "_until"
#: Of a row: its number in order of arrival, and the watermark at its arrival.
NUMBER_OF, WATERMARK_OF = "_number", "_watermark"
#: Of a row and its slice: the instant through which windows had been shown at the row's arrival, or null if none of them holds it.
CLOSED = "_closed"
#: Of a row: whether it is late.
LATE = "_late"
#: Of a row, if any is late: whether it came too late for all windows that hold it, and for each grid, whether it did for one of them.
REFUSED, MISSED = "_refused", "_ missed"
#: Columns added to each row besides the event time: index of its file, index in the file, version, reason for quarantine.
FILE, ROW, VERSION, REASON = "_file", "_row", "_version", "_reason"
ADDED = (TIME, FILE, ROW, VERSION, REASON)
#: Temporary columns: URI of the row's file, whether a condition cannot be evaluated on the row, and what in it could not be read.
URI, FAILED, UNREAD = "_uri", "_ failed", "_ unread"
#: Columns of live rows in memory, in addition to the source's.
ROW_KEY, ROW_NUMBER, ROW_TIME, ROW_UNTIL, ROW_WATERMARK = "_ key", "_ number", "_ time", "_ until", "_ watermark"
#: Name, in the quarantine and among the columns of a topic, of the text of what is no row at all.
CORRUPT = "_corrupt_record"
#: Number of a row's commit if it brings revisions, else null; also of its partial.
ARRIVAL = "_arrival"
#: Number of a row's commit, or that of a partial's first row; not stored. Only if revisions show empty windows.
ORDER = "_order"
#: Halves of the hash of a row's values of ``dedup.by``; and whether the row came too late for every window by its time alone.
ID_HIGH, ID_LOW, LAPSED = "_id_high", "_id_low", "_lapsed"
#: Start of a slice.
SLICE = "_slice"
#: Level of a node over slices, 0 for a slice; only where such nodes are stored.
LEVEL = "_level"
#: Whether the events of a partial began before its slice and last into it: 1 or 0; only for interval events.
REACHING = "_reaching"
#: Start of the last slice that events of a partial are known to reach, until it is stored; only where such events last and windows show
#: empty ones.
REACHED = "_reached"
#: Of a fragment of a session: the gap, and its first and last event time.
GAP, FIRST, LAST = "_gap", "_first", "_last"
#: Column of a fragment if sessions are revised: the revision of the session, or that which it will have when it is shown.
REVISION = "_revision"
#: Columns of a fragment if sessions have a greatest size: this size, null for sessions without; and whether the fragment is closed, and
#: only supersedes others.
LONGEST, GONE = "_longest", "_gone"
#: Columns of a node over positions, in addition to its partials: its level, 0 for a leaf; its first position; the event time of the tuple
#: there (``FIRST``); that of the first tuple of the node above it, null if no window will ever hold all of that node.
NODE_LEVEL, POSITION, ABOVE = "_node_level", "_position", "_above"
#: Column of rows of every kind over positions: the sequence.
SEQUENCE = "_sequence"
#: Columns of a ``key`` row: the watermark through which its tuples were applied, the position of the next tuple, and the first position
#: that a window holds, and how many tuples wait. It also has ``DUE``, and ``NUMBER_OF`` and ``TIME`` of the last applied tuple.
THROUGH, NEXT, HEAD, QUEUED = "_through", "_next", "_head", "_queued"
#: Columns that only pipelines with windows that evict by a delta have: the number of live tuples of a key, or below a node; and for a node
#: the least value of these in the delta's column, as an integer or as a float; null if none has one.
LIVE, LEAST, FLOAT_LEAST = "_live", "_least", "_float_least"
#: Bucket of the keys of a row of the state, see :mod:`.hashes`.
BUCKET = "_bucket"
#: Batch that appended a row of the state.
BATCH = "_batch"
#: Kind of a row of the state, where a table holds several.
KIND = "_kind"
#: Watermark from which the key of a row of the state has work.
DUE = "_due"
#: Checksum of a row of the state.
SUM = "_sum"
#: Of a result row: whether its window holds nothing any more, or has other bounds since.
RETRACTED = "retracted"
#: Column names that a source must not have: those of rows that a batch computes, and those that readers of Delta tables and parts add.
TAKEN = (
    *(*ADDED, URI, FAILED, UNREAD, NUMBER_OF, UNTIL_OF, WATERMARK_OF, CLOSED, LATE, ARRIVAL, ORDER),
    *(ROW_KEY, ROW_NUMBER, ROW_TIME, ROW_UNTIL, ROW_WATERMARK, "_of_file", REFUSED, "_block", "_before", "_seen", ID_HIGH, ID_LOW, LAPSED),
)
#: Names that no key may have: those of the state's columns, in every layout.
STATE_COLUMNS = frozenset(
    {
        *(SLICE, LEVEL, CLOSED, ARRIVAL, ORDER, REACHING, REACHED, GAP, FIRST, LAST, REVISION, LONGEST, GONE, BUCKET, BATCH, KIND),
        *(DUE, SUM, NODE_LEVEL, POSITION, ABOVE, SEQUENCE, THROUGH, NEXT, HEAD, QUEUED, LIVE, LEAST, FLOAT_LEAST),
    }
)
