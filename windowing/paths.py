"""Paths of tables as a spec gives them, which can be one table's, and which lie within one another; and files of specs."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote

_MAX_LENGTH = 2_048
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://?(?P<rest>.*)", re.DOTALL)
#: Characters of a path in object storage that may be written with different escapes.
_ODD = re.compile(r"[^A-Za-z0-9._/=+@:,~-]")
_QUERY = re.compile(r"\?[\w.-]+=")
#: Different clients' names of one store.
_SAME_STORE = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}


def checked_path(path: str) -> str:
    """The ``path``; raises ``ValueError`` if something keeps it from being one table's, with what to do."""
    if not path.strip():
        raise ValueError("expected the path of a folder")
    if path != path.strip():
        raise ValueError("begins or ends with a blank; take it out")
    if not path.isprintable():
        raise ValueError("holds a character that cannot be printed; take it out")
    if len(path) > _MAX_LENGTH:
        raise ValueError(f"{len(path)} characters; expected at most {_MAX_LENGTH}")
    found = _SCHEME.match(path)
    rest = found["rest"] if found else path
    if found and _QUERY.search(rest):
        rest = rest[: rest.index("?")]
    if ".." in re.split(r"[/\\]", unquote(rest)):
        raise ValueError("holds '..'; write the path out")
    if "${" in rest:
        raise ValueError("holds a variable, which a spec's file and mappings may name; give its value here, as os.environ has it")
    glob = next((sign for sign in "*?[]{}" if sign in rest), None)
    if glob is not None:
        raise ValueError(f"holds {glob!r}; expected the path of one folder, not a pattern")
    escape = _ESCAPE.search(path)
    if escape is not None and found is None:
        # delta-rs 1.6 reads the log of "a b" and writes files to "a%20b".
        raise ValueError(f"holds {escape[0]!r}, which readers of Delta tables take for {unquote(escape[0])!r}; rename the folder")
    odd = _ODD.search(rest) if found and found["scheme"].lower() != "file" else None
    if odd is not None:
        # delta-rs looks for the last checkpoint of "a b" at "a%2520b", and for its commits at "a b".
        raise ValueError(
            f"holds {odd[0]!r}, which Delta's libraries escape differently in object storage; use letters of ASCII, digits and -._=/"
        )
    if path.startswith("~"):
        raise ValueError("a home folder is not looked up; write the path out, or use ${HOME}")
    place = normalised(path)
    if not (place.partition("://")[2] if "://" in place else place).strip("/"):
        raise ValueError("is no folder of a table; name one below it")
    return path


def normalised(path: str) -> str:
    """One spelling of ``path`` for comparisons: without ``file:``, credentials and query; a relative path made absolute."""
    found = _SCHEME.match(path)
    if found is None or found["scheme"].lower() == "file":
        plain = unquote(found["rest"]) if found else path
        # file:/x, file:///x and file://localhost/x are /x.
        plain = "/" + plain.removeprefix("localhost/") if found and not plain.startswith("/") else plain
        return re.sub("^/+", "/", os.path.abspath(plain))  # noqa: PTH100 - Path.resolve would ask the file system for links
    scheme = _SAME_STORE.get(found["scheme"].lower(), found["scheme"].lower())
    authority, _, below = found["rest"].partition("/")
    below = "/".join(part for part in below.partition("?")[0].split("/") if part not in ("", "."))
    return f"{scheme}://{authority.rpartition('@')[2].lower() if scheme not in ('abfss', 'wasbs') else authority.lower()}/{below}"


def within(path: str, folder: str) -> bool:
    inner, outer = normalised(path), normalised(folder)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


#: Bytes of the largest file that is read.
MAX_BYTES = 1 << 20


def specs_in(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def read_small(path: str | os.PathLike[str]) -> bytes:
    """The bytes of the regular file at ``path``.

    A pipe or a device may give nothing for ever, or go on for ever, while Airflow parses DAGs.

    Raises
    ------
    OSError
        If it cannot be read, is no regular file, or has more than :data:`MAX_BYTES` bytes; ``strerror`` says which.
    ValueError
        If ``path`` has a null character.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        found = file.read(MAX_BYTES + 1)
    if len(found) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_BYTES} bytes", os.fspath(path))
    return found
