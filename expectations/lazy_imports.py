"""Makes the import of Great Expectations cheaper: modules that few rules use load at first use, and SQLAlchemy is not loaded."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

#: Modules that Great Expectations, or ``pyspark.ml`` behind it, import as a whole (``import altair``): 1 s of processor time together.
DEFERRED = frozenset({"altair", "jsonschema", "scipy.sparse", "scipy.stats"})
#: Great Expectations needs this package for databases alone, and does without it where it is not installed. Its import takes 0.3 s.
UNUSED = "sqlalchemy"


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Within the context, what this thread imports finds the modules above deferred or absent, unless they are imported already.

    A deferred module is Python's own: a :class:`importlib.util.LazyLoader` executes it when an attribute of it is read. Python 3.11 does
    that without a lock. So only this thread gets such modules, and windowmill's threads use Great Expectations one at a time.
    """
    finder = _Finder(threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if threading.get_ident() != self._thread:
            return None
        if fullname == UNUSED:
            raise ModuleNotFoundError(f"not needed to check rules: {fullname}", name=fullname)
        if fullname not in DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec
