"""Opens tables, files and folders at a place: a path on this machine, or the URI of object storage (``s3://``, ``gs://``, ``abfss://``).

All access goes through delta-rs's client of the store, so one set of credentials serves tables, logs, data files and pages. It takes them
from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``AWS_PROFILE``, instance roles, …), or from the ``storage_options`` of a
spec, which :func:`use_options` registers. A full disk, and a place that must not be written, are recognized in the errors of all libraries.

A spec may name a table by a catalog. Spark is asked once for the place of that table, and :func:`record` writes the answer to a file in the
pipeline's folder. From then on :func:`located` finds the place without a JVM.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from windowmill.checkpoints.places import Places, local_path, readable_path
from windowmill.windowing.errors import LedgerError, SpecError, first_line
from windowmill.windowing.fields import Lookup, Table
from windowmill.windowing.paths import normalised
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

#: Scheme, as :func:`normalised` spells it -> how the environment variables begin that its client reads.
_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "abfss": "AZURE_", "az": "AZURE_"}

#: Registered options by normalised place; they also apply to everything below it.
_OPTIONS: dict[str, dict[str, str]] = {}

Options = Mapping[str, str]
#: What access to a store raises, by whichever library.
FAILURES = (DeltaError, pa.ArrowException, OSError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
#: Texts by which messages of Rust and Arrow report the operating system's error.
_TOLD = re.compile(r"(?:os error|\[errno) (\d+)", re.IGNORECASE)
#: Matches messages of delta-rs, pyarrow and object stores about a missing file.
_MISSING = re.compile(r"not found|No such file|NotFound|does not exist|FileNotFoundError|NoSuchKey", re.IGNORECASE)
#: Matches messages of delta-rs about an answer of the store, or about none.
_ANSWERED = re.compile(
    r"Generic (?!delta|LocalFileSystem)\w+ error(?![\s\S]*range (?:was invalid|not satisfiable))|error sending request|timed? ?out"
    r"|connection (?:reset|closed|refused)|operation lacked",
    re.IGNORECASE,
)
#: The file with the places of tables of catalogs, and the fields of a spec that may name such a table.
FILE, FIELDS = "catalog-tables.json", ("source", "sink")


def is_local(place: str) -> bool:
    return local_path(place) is not None


def use_options(options: Mapping[str, Options]) -> None:
    """Register the ``storage_options`` of places, for this process; they apply to everything below a place."""
    _OPTIONS.update({normalised(place): dict(own) for place, own in options.items()})


def use_options_of(pipeline: Pipeline) -> None:
    """Register the ``storage_options`` of the tables of a spec; those of the sink also serve its checkpoints, unless these have some.

    Raises ``SpecError`` if a variable that they name is not set.
    """
    tables: dict[str, Table | None] = {"source": pipeline.source, "sink": pipeline.sink, "checkpoints": pipeline.checkpoints}
    tables |= _looked_up(pipeline) if pipeline.steps else {}
    own = {field: _filled(pipeline, field, table) for field, table in tables.items() if table is not None and table.storage_options}
    for field, options in own.items():
        table = tables[field]
        place = table.location if isinstance(table, Lookup) else None if table is None else table.path
        if place is not None:
            use_options({place: options})
    if "sink" in own and pipeline.sink is not None and pipeline.sink.current is not None:
        use_options({pipeline.sink.current: own["sink"]})
    below = own.get("checkpoints") or own.get("sink")
    if below:
        use_options({Places.of(pipeline).root: below})


def _looked_up(pipeline: Pipeline) -> dict[str, Lookup]:
    """The tables that the spec looks up, by field."""
    return {f"steps.{index}.lookup": step.lookup for index, step in enumerate(pipeline.steps) if step.lookup is not None}


def _filled(pipeline: Pipeline, field: str, table: Table) -> dict[str, str]:
    filled = {}
    for option, text in table.storage_options.items():
        name = text.removeprefix("${").removesuffix("}")
        if name not in os.environ:
            raise SpecError(
                f"pipeline {pipeline.pipeline}: {field}.storage_options.{option}: the environment variable {name} is not set; export it, "
                "then run again"
            )
        filled[option] = os.environ[name]
    return filled


def options_of(place: str) -> dict[str, str] | None:
    """The ``storage_options`` of delta-rs for ``place``: the environment's, overridden by registered ones; none on this machine.

    They hold credentials: pass them to tasks (which register them by :func:`use_options`), and never show them.
    """
    if is_local(place):
        return None
    there = normalised(place)
    prefix = _VARIABLES.get(there.partition(":")[0], "-")
    found = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
    above = [own for own in _OPTIONS if there == own or there.startswith(f"{own.rstrip('/')}/")]
    own = _OPTIONS[max(above, key=len)] if above else {}
    # One spelling of aws_region, AWS_REGION and region, so that one replaces the other.
    upper = {name.upper(): value for name, value in own.items()}
    found |= {name if name.startswith(prefix) else f"{prefix}{name}": value for name, value in upper.items()}
    if prefix == "AWS_" and "AWS_ACCESS_KEY_ID" not in found:
        # Profiles, web identities and roles: delta-rs asks for them only at Amazon's own address, unless asked to.
        found.setdefault("AWS_FORCE_CREDENTIAL_LOAD", "true")
    return found


def endpoint_of(place: str) -> str:
    """Address of the server for ``place``, if it is not that of the provider."""
    options = {name.lower().removeprefix("aws_"): value for name, value in (options_of(place) or {}).items()}
    return redacted(options.get("endpoint_url_s3") or options.get("endpoint_url") or options.get("endpoint") or "")


def table_at(place: str, version: int | None = None) -> DeltaTable:
    """The Delta table at ``place``; raises ``TableNotFoundError`` and other errors of ``DeltaTable``."""
    return DeltaTable(readable_path(place), version=version, storage_options=options_of(place))


def is_table(place: str) -> bool:
    return bool(DeltaTable.is_deltatable(place, options_of(place)))


def create_table(place: str, schema: Any, **settings: Any) -> DeltaTable:
    """Create the Delta table at ``place``, and the folders above it on this machine; ``settings`` are those of ``DeltaTable.create``."""
    make_folder(place)
    return DeltaTable.create(place, schema, storage_options=options_of(place), **settings)


def write_table(table: DeltaTable | str, rows: Any, **settings: Any) -> None:
    """Write ``rows`` to a Delta table; ``settings`` are those of ``write_deltalake``."""
    if isinstance(table, str):
        make_folder(table)
        settings["storage_options"] = options_of(table)
    write_deltalake(table, rows, **settings)


def make_folder(place: str) -> None:
    """Create the folder ``place`` on this machine; object storage needs none."""
    local = local_path(place)
    if local is not None:
        local.mkdir(parents=True, exist_ok=True)


def remove_folder(place: str) -> None:
    """Remove the folder ``place`` with all that is in it, if it is there."""
    fs, root = filesystem_of(place)
    if not is_local(place):  # the file system of delta-rs does not delete folders
        for found in fs.get_file_info(pa_fs.FileSelector(root, allow_not_found=True, recursive=True)):
            if found.type == pa_fs.FileType.File:
                fs.delete_file(found.path)
    elif fs.get_file_info(root).type == pa_fs.FileType.Directory:
        fs.delete_dir_contents(root)


def filesystem_of(place: str) -> tuple[pa_fs.FileSystem, str]:
    """File system of ``place``, and the path of ``place`` in it."""
    local = local_path(place)
    if local is not None:
        return pa_fs.LocalFileSystem(), str(local.absolute())
    parts = urlsplit(place)
    return _remote(f"{parts.scheme}://{parts.netloc}", _settled(place)), parts.path.strip("/")


def store_of(place: str) -> pa_fs.FileSystem:
    """File system whose root is the folder ``place``, such as that of a table.

    On this machine it opens files ten times as fast as delta-rs's client, and follows a symbolic link to where it leads now.
    """
    local = local_path(place)
    if local is not None:
        return pa_fs.SubTreeFileSystem(str(local.absolute()), pa_fs.LocalFileSystem())
    return _remote(place, _settled(place))


def remote_store_of(place: str) -> pa_fs.FileSystem | None:
    """:func:`store_of` for object storage; none on this machine."""
    return None if is_local(place) else store_of(place)


def _settled(place: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((options_of(place) or {}).items()))


class _Handler(DeltaStorageHandler):
    """delta-rs's client as a file system of pyarrow."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_BytesStream(self._handler.open_output_stream(path, metadata)))

    def copy_file(self, src: str, dst: str) -> None:
        # deltalake 1.6.6 passes an argument of another name.
        self._handler.copy_file(src, dst)


class _BytesStream:
    """Passes bytes on to delta-rs's stream, which does not take pyarrow's buffers."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        return int(self._stream.write(bytes(data)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@lru_cache(maxsize=32)
def _remote(root: str, options: tuple[tuple[str, str], ...]) -> pa_fs.FileSystem:
    try:
        return pa_fs.PyFileSystem(_Handler(root, dict(options)))
    except (DeltaError, ValueError) as err:
        raise OSError(f"{redacted(root)}: {first_line(err)}") from err


def is_disk_full(err: BaseException | None) -> bool:
    """Whether ``err``, or what caused it, says that the disk, a quota or the size of a file is used up."""
    return any(code in _FULL for code in _codes(err))


def says_missing(err: BaseException) -> bool:
    """Whether ``err`` of delta-rs, pyarrow or an object store is about a missing file."""
    return isinstance(err, FileNotFoundError) or _MISSING.search(str(err)) is not None


def is_unavailable(err: BaseException | None) -> bool:
    """Whether ``err``, or what caused it, says that storage has not answered, or has refused access: what is stored may be whole."""
    while err is not None:
        if not isinstance(err, FileNotFoundError):
            codes = {int(code) for code in _TOLD.findall(str(err))} | ({err.errno} if isinstance(err, OSError) else set())
            if codes - {None, errno.ENOENT} or (_ANSWERED.search(str(err)) and not says_missing(err)):
                return True
        err = err.__cause__
    return False


def remedy(err: BaseException, otherwise: str) -> str:
    """What to do about ``err`` of a table or folder: ``otherwise`` only where storage has answered."""
    if is_disk_full(err):
        return "free some space and run again"
    if is_forbidden(err):
        return "give the user of this run the permission, or mount it writable, and run again"
    return "run again; if it stays, check the connection, the credentials and their permissions" if is_unavailable(err) else otherwise


def is_forbidden(err: BaseException | None) -> bool:
    """Whether ``err``, or what caused it, says that a file must not be written: by its permissions, or a read-only file system."""
    return any(code in _FORBIDDEN for code in _codes(err))


def forbidden_folder(table: str) -> Path | None:
    """The folder of a table on this machine, or of its log, if this process must not write it; none if it may."""
    root = local_path(table)
    if root is None:
        return None
    # A table that does not exist yet gets a folder in the nearest one that does.
    there = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    return next((folder for folder in (there, root / "_delta_log") if folder.exists() and not os.access(folder, os.W_OK | os.X_OK)), None)


def _codes(err: BaseException | None) -> Iterator[int]:
    """Numbers of the operating system's errors in ``err`` and what caused it."""
    while err is not None:
        if isinstance(err, OSError) and err.errno is not None:
            yield err.errno
        yield from map(int, _TOLD.findall(str(err)))
        err = err.__cause__ or err.__context__


def named(pipeline: Pipeline) -> dict[str, str]:
    """The tables that the spec names by a catalog, by field."""
    tables: dict[str, Table | None] = {field: getattr(pipeline, field) for field in FIELDS}
    tables |= _looked_up(pipeline) if pipeline.steps else {}
    return {field: table.table for field, table in tables.items() if table is not None and table.table is not None}


def recorded(pipeline: Pipeline) -> dict[str, str]:
    """The recorded places of tables of catalogs, by the names of the tables.

    Raises ``LedgerError`` if the file of places cannot be read.
    """
    root = Places.of(pipeline).root
    store = store_of(root)
    try:
        if store.get_file_info(FILE).type != pa_fs.FileType.File:
            return {}
        with store.open_input_file(FILE) as file:
            found: Mapping[str, Any] = json.loads(file.read())
        return {str(table): str(place) for table, place in found.items()}
    except (OSError, ValueError, AttributeError) as err:
        raise LedgerError(f"{root}/{FILE}: cannot be read ({first_line(err)}); remove it, and run again") from err


def record(pipeline: Pipeline, found: Mapping[str, str]) -> None:
    """Record the places ``found`` of tables of catalogs, by the names of the tables."""
    root = Places.of(pipeline).root
    make_folder(root)
    with store_of(root).open_output_stream(FILE, buffer_size=1 << 16) as file:
        file.write(json.dumps(dict(found), indent=2).encode())


def located(pipeline: Pipeline) -> Pipeline:
    """``pipeline`` with the recorded places of the tables that it names by a catalog; registers their ``storage_options``."""
    tables = named(pipeline)
    if not tables or (pipeline.sink is None and pipeline.checkpoints is None):
        return pipeline
    known = recorded(pipeline)
    paths = {field: known[table] for field, table in tables.items() if table in known}
    own = {field: path for field, path in paths.items() if field in FIELDS}
    changed: dict[str, Any] = {
        field: getattr(pipeline, field).model_copy(update={"path": path, "table": None}) for field, path in own.items()
    }
    if own.keys() != paths.keys():
        places = (paths.get(f"steps.{index}.lookup") for index in range(len(pipeline.steps)))
        changed["steps"] = tuple(
            step if step.lookup is None or path is None else step.model_copy(update={"lookup": step.lookup.located_at(path)})
            for step, path in zip(pipeline.steps, places, strict=True)
        )
    found = pipeline.model_copy(update=changed)
    use_options_of(found)
    return found
