"""Keeps writers of one pipeline apart: a lease on one machine, and conditional writes in object storage.

The ledger's fence already lets only one of two writers commit. The lease saves the other the wasted work, and protects commits of two JVMs
on a local file system, between which Delta itself has no mutual exclusion: it is a lock on the pipeline's folder, which the kernel releases
even after ``kill -9``. In object storage the fence rests on conditional writes, so a store without them is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Barrier
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from windowmill.checkpoints.delta_tables import actions_of, entry_name
from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.stores import create_table, endpoint_of, filesystem_of, is_local, store_of, table_at
from windowmill.windowing.errors import LeaseTakenError, LedgerError, MachineError, first_line
from windowmill.windowing.paths import normalised
from windowmill.windowing.redaction import redacted

#: Schemes whose clients can create an object on condition that it is absent.
_SCHEMES = ("s3", "s3a", "gs", "abfss", "abfs", "az")
#: Races for one version, and writers in each. A store that checks and then writes lets several win in half of such races.
_RACES, _WRITERS = 12, 6
_PATIENCE_SECONDS = 60.0
#: Below the folder of the pipeline's own tables: the stores that have passed.
MARK = "conditional-writes.json"

#: Stores that have passed in this process.
_PASSED: set[str] = set()


def check_scheme(path: str) -> None:
    """Refuse a place whose scheme is not known to have conditional writes; raises ``MachineError``. Makes no request."""
    if not is_local(path) and urlsplit(path).scheme.lower() not in _SCHEMES:
        raise MachineError(
            f"{redacted(path)}: {urlsplit(path).scheme}:// is not known to keep two writers apart, so a batch could be lost or committed "
            f"twice; use a local folder, or one of {', '.join(f'{name}://' for name in _SCHEMES)}"
        )


def check_conditional_writes(root: str, places: Sequence[str], say: Callable[[str], None]) -> None:
    """Refuse object storage that lets two writers create the same version of a table.

    Writers race for versions of a small table below each place, unless its store has passed before: in this process, or according to
    the file :data:`MARK` below ``root``.

    Raises
    ------
    MachineError
        If two writers have created the same version, or the store cannot be used.
    """
    waiting = {_store(place): place for place in places if not is_local(place)}
    if not waiting.keys() - _PASSED:
        return
    mark = None if is_local(root) else f"{root}/{MARK}"
    _PASSED.update(_recorded(mark))
    unknown = waiting.keys() - _PASSED
    for store in unknown:
        say(f"{redacted(store)}: testing whether it keeps two writers apart")
        _race(waiting[store])
    _PASSED.update(unknown)
    if unknown and mark:
        files, path = filesystem_of(mark)
        with suppress(OSError, pa.ArrowException), files.open_output_stream(path) as stream:
            stream.write(json.dumps(sorted(_PASSED)).encode())


def _store(place: str) -> str:
    """Name of the bucket or container of ``place``, and of the server that has it."""
    scheme, _, rest = normalised(place).partition("://")
    endpoint = endpoint_of(place)
    return f"{scheme}://{rest.partition('/')[0]}" + (f" at {endpoint}" if endpoint else "")


def _recorded(mark: str | None) -> set[str]:
    if mark is None:
        return set()
    files, path = filesystem_of(mark)
    try:
        with files.open_input_stream(path) as stream:
            return set(map(str, json.loads(stream.read())))
    except (OSError, pa.ArrowException, ValueError, TypeError):
        return set()


def _race(place: str) -> None:
    # Readers of a Delta table ignore folders whose names begin with an underscore.
    probe = f"{place}/_windowmill-{uuid.uuid4().hex[:12]}"
    try:
        create_table(probe, pa.schema([("n", pa.int64())]), mode="error")
        stale = table_at(probe)
        tables = [table_at(probe) for _ in range(_WRITERS)]
        with ThreadPoolExecutor(_WRITERS) as threads:
            for number in range(1, _RACES + 1):
                start = Barrier(_WRITERS)
                won = [name for name in threads.map(lambda table, start=start: _commit(table, start), tables) if name]
                _check(place, probe, number, won)
                for table in tables:
                    table.update_incremental()
        # A commit to a version that is long there.
        _check(place, probe, 1, [_writer(probe, 1), *filter(None, [_commit(stale)])])
    except (DeltaError, OSError, pa.ArrowException) as err:
        raise MachineError(f"{redacted(place)}: cannot be used ({first_line(err)}); {_advice(err)}") from err
    finally:
        with suppress(OSError, pa.ArrowException):
            files, path = filesystem_of(probe)
            files.delete_dir(path)


def _commit(table: DeltaTable, start: Barrier | None = None) -> str | None:
    """Commit the next version; returns the name of the commit, or none if another writer was first."""
    name = uuid.uuid4().hex
    once = CommitProperties(max_commit_retries=0, custom_metadata={"writer": name})
    if start:
        start.wait(_PATIENCE_SECONDS)
    try:
        table.create_write_transaction([], "append", table.schema(), commit_properties=once)
    except CommitFailedError:
        return None
    return name


def _writer(probe: str, version: int) -> str:
    with store_of(probe).open_input_file(entry_name(version)) as stream:
        return next(str(action["commitInfo"]["writer"]) for action in actions_of(stream.read()) if "commitInfo" in action)


def _check(place: str, probe: str, version: int, won: Sequence[str]) -> None:
    if len(won) > 1 or (won and _writer(probe, version) != won[0]):
        raise MachineError(
            f"{redacted(place)}: the store let {max(len(won), 2)} writers create one version of a table, so a batch could be lost; use "
            "one with conditional writes (If-None-Match), as S3, Google Cloud Storage, Azure and current versions of MinIO and Ceph have"
        )


def _advice(err: Exception) -> str:
    text = str(err)
    if "URL scheme is not allowed" in text:
        return "set AWS_ALLOW_HTTP=true if its address shall be http://"
    if "169.254." in text or "Missing" in text or "credential" in text.lower():
        return "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name variables in storage_options"
    return "check its address, credentials and permissions (docs/writing-a-pipeline.md, 'Object storage')"


@contextmanager
def lease(root: str, *, wait_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lease of the pipeline whose folder is ``root``; object storage has no lease, only the ledger's fence.

    Parameters
    ----------
    wait_seconds
        How long to wait for another run to end.
    on_wait
        Called once with a message if there is another run to wait for.

    Raises
    ------
    LeaseTakenError
        If the other run has not ended in time.
    LedgerError
        If the folder cannot be written.
    """
    path = local_path(root)
    if path is None:
        yield
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Lock the folder itself: a lock file could be removed, and a second process could lock its replacement.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        holder_file = path / ".lease"
        holder_file.touch()
    except OSError as err:
        raise LedgerError(f"{root}: cannot be written ({err.strerror}); correct sink.path, or the permissions of its folder") from err
    try:
        deadline, waiting = time.monotonic() + wait_seconds, False
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _holder(holder_file)
                if time.monotonic() >= deadline:
                    raise LeaseTakenError(
                        f"{root}: another run is under way ({holder}); wait for it to end, or stop it, and run again"
                    ) from None
                if not waiting:
                    on_wait(f"another run of this pipeline is under way ({holder}); waiting for it to end")
                    waiting = True
                time.sleep(0.2)
        holder_file.write_text(f"process {os.getpid()}")
        yield
    finally:
        os.close(folder)


def _holder(file: Path) -> str:
    try:
        return file.read_text().strip() or "unknown process"
    except OSError:
        return "unknown process"
