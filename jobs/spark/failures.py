"""Explains errors of Spark and other libraries in one line: what failed, where, and what to do."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import PurePath

from windowmill.checkpoints.stores import is_disk_full
from windowmill.windowing import errors
from windowmill.windowing.errors import ServerGoneError, StorageFullError, WindowmillError, first_line

#: Errors that a client of Spark Connect gets when the server has died, or has been restarted.
_SERVER_GONE = r"StatusCode\.UNAVAILABLE|INVALID_HANDLE\.(?:SESSION|OPERATION)_(?:CHANGED|CLOSED|NOT_FOUND)|NO_ACTIVE_SESSION"
#: Pattern of a library's message, and advice for the user; the first match wins.
_KNOWN = (
    (r"ARITHMETIC_OVERFLOW", "an integer sum left the range of a 64-bit integer; make the column double in the source"),
    (
        r"FILE_NOT_EXIST|FileNotFoundException|PATH_NOT_FOUND|does not exist",
        "a file of a table is gone (vacuumed or deleted by hand); restore it, or backfill into a new sink",
    ),
    (
        r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|Forbidden|SlowDown|UnknownHost|Connection reset|timed? ?out",
        "storage did not answer, or refused access; run again; if it stays, check the connection, the credentials and their permissions",
    ),
    (
        r"FAILED_READ_FILE|is not a Parquet file|ChecksumException|could not verify page integrity|ParquetDecodingException",
        "a file of a table is damaged; restore it from a copy, or backfill into a new sink",
    ),
    (r"No space left on device", "the disk is full; free some space and run again"),
    (  # before the JVM: the message about a server that has died also says "Connection refused"
        _SERVER_GONE,
        "the Spark Connect server has died or lost its session; run again, a run starts Spark of its own where no server answers",
    ),
    (
        r"Answer from Java side is empty|Connection refused|Py4JNetworkError",
        "Spark's JVM died (killed, or out of memory); run again, with WINDOWMILL_DRIVER_MEMORY=8g if it happens again",
    ),
    (
        r"Cannot find catalog plugin class|DATA_SOURCE_NOT_FOUND.*delta",
        "the Spark Connect server has no Delta jars; start it with `windowmill serve`",
    ),
    (
        r"OutOfMemoryError|Java heap space",
        "Spark ran out of memory; set WINDOWMILL_DRIVER_MEMORY=8g, or lower source.options.maxBytesPerTrigger",
    ),
    (r"PARSE_SYNTAX_ERROR|UNRESOLVED_COLUMN", "a condition in the spec (filter or where) is not valid Spark SQL over the source's columns"),
    (
        r"DELTA_FAILED_TO_MERGE_FIELDS|DELTA_METADATA_MISMATCH|schema mismatch",
        "a table's columns are not those of the spec; choose another sink, or put the spec back",
    ),
    (r"[Pp]ermission denied|AccessControlException", "a path may not be read or written by this user; check its permissions"),
)

#: A frame of a Python trace: file, line and function.
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
#: How the files of Python and of installed libraries begin.
_INSTALLED = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")))

#: Windowmill's own error in a Python worker, as Spark's error quotes it in the trace.
_OURS = re.compile(rf"^\s*(?:[\w.]+: )*{re.escape(errors.__name__)}\.(\w+Error): ([^\n]+)", re.MULTILINE)


def raised_in_worker(err: Exception) -> WindowmillError | None:
    """Windowmill's own error that a Python worker raised, if Spark's error ``err`` quotes one."""
    quoted = _OURS.search(str(err))
    kind = getattr(errors, quoted[1], None) if quoted else None
    return kind(quoted[2].strip()) if quoted and isinstance(kind, type) and issubclass(kind, WindowmillError) else None


def typed(err: Exception) -> WindowmillError | None:
    """Windowmill's own error behind Spark's error ``err``: of a worker, or about a full disk or a lost server."""
    ours = raised_in_worker(err)
    if ours is not None:
        return ours
    if is_disk_full(err):
        return StorageFullError(f"{_disk_full(err)}; nothing of this batch counts until it is committed")
    gone = re.search(_SERVER_GONE, str(err))
    return ServerGoneError(f"the Spark Connect server has died or lost its session ({gone[0]})") if gone else None


def _disk_full(err: BaseException) -> str:
    """The message of a full disk, even if a library's error hides it."""
    cause: BaseException | None = err
    while cause is not None and not (isinstance(cause, OSError) and is_disk_full(cause)):
        cause = cause.__cause__ or cause.__context__
    return f"{first_line(cause or err)[:300]}: the disk is full or a quota is used up; free some space, and run again"


def explain(err: Exception) -> str:
    """One line for an error that windowmill did not raise: the first line of its message, and advice."""
    if is_disk_full(err):
        return _disk_full(err)
    text = f"{type(err).__name__}: {err}"
    advice = next((advice for pattern, advice in _KNOWN if re.search(pattern, text)), None)
    first = next((line.strip() for line in str(err).splitlines() if line.strip()), type(err).__name__)
    # The error of a Python worker is the last line of the trace that Spark quotes, the only one without indentation.
    worker = re.search(r"Traceback \(most recent call last\):.*?\n(\w[\w.]*(?:: [^\n]{0,300})?)", text, re.DOTALL)
    java = re.search(r"(?:Caused by: |: )((?:[a-z]+\.)+[A-Z]\w*(?:Exception|Error): [^\n]{0,200})", text)
    what = worker[1] if worker else java[1] if java and "An error occurred while calling" in first else first
    if advice is None:
        advice = "run again, or with `windowmill --debug …` for the trace"
        named = what if worker or java or not str(err).strip() else f"{type(err).__name__}: {first}"
        what = named[:300] + _place(text if worker else "".join(traceback.format_tb(err.__traceback__)))
    return f"{what[:400]}; {advice}; nothing of this batch counts until it is committed"


def _place(trace: str) -> str:
    """Where the innermost call of ``trace`` is that is not a library's: a function of the user's, where one fails."""
    frames = [frame for frame in _FRAME.findall(trace) if not frame[0].startswith(_INSTALLED)]
    return " ({}:{} in {})".format(PurePath(frames[-1][0]).name, *frames[-1][1:]) if frames else ""
