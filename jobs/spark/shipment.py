"""Users' modules (aggregates, window functions) that Spark's Python workers cannot import by themselves."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import shutil
import site
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from windowmill.windowing.registry import GROUP

#: Each entry of a zip has this time, so that equal files give equal zips: a session takes a name again only with the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
#: Name of the distribution that announces plugins to the workers of a Spark Connect session.
_SHIPPED = "windowmill_shipped"


@dataclass(frozen=True)
class Shipment:
    """Names of the modules that a pipeline uses, and of the plugins that workers import, which are among the modules.

    Nothing is imported before the files are asked for: workers of this process's own JVM import by themselves.
    """

    modules: frozenset[str] = frozenset()
    plugins: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """The files of modules that are not installed, and a zip of each package that such a module is in."""
        found: list[Path] = []
        for name in sorted({module.partition(".")[0] for module in self.modules}):
            origin = importlib.import_module(name).__spec__
            locations: Sequence[str | None] = (origin.submodule_search_locations or [origin.origin]) if origin else []
            paths = [Path(location) for location in locations if location]
            found += [path if path.is_file() else _zipped(path) for path in paths if not _installed(path)]
        return found

    @cached_property
    def digest(self) -> str:
        sha = hashlib.sha256("\n".join(self.plugins).encode())
        for file in self.files():
            sha.update(f"\n{file.name}\n".encode() + file.read_bytes())
        return sha.hexdigest()


def plugins_zip(plugins: tuple[str, ...]) -> Path:
    """A zip that names ``plugins`` as an installed distribution does: workers find its entry points on their path."""
    points = "".join(f"{name} = {name}\n" for name in plugins)
    folder = f"{_SHIPPED}-0.dist-info"
    entries = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {_SHIPPED}\nVersion: 0\n",
        f"{folder}/entry_points.txt": f"[{GROUP}]\n{points}",
    }
    return _zip(_SHIPPED, {name: text.encode() for name, text in entries.items()})


def _installed(path: Path) -> bool:
    roots = [*site.getsitepackages(), sysconfig.get_path("stdlib")]
    return any(path.is_relative_to(root) for root in roots)


@functools.cache  # Spark accepts a file name a second time only for the same path
def _zipped(package: Path) -> Path:
    """The package's Python files as an importable zip, named after the package: Spark ships each file name once."""
    files = sorted(package.rglob("*.py"))
    return _zip(package.name, {str(Path(package.name) / file.relative_to(package)): file.read_bytes() for file in files})


def _zip(name: str, entries: Mapping[str, bytes]) -> Path:
    """A zip of ``entries`` in a folder of its own, which goes when this process ends."""
    folder = tempfile.mkdtemp(prefix="windowmill-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / f"{name}.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for entry, content in entries.items():
            archive.writestr(zipfile.ZipInfo(entry, _TIME), content)
    return target
