"""What Spark lacks: a Java, which is found, and jars, fetched once at set-up and used by every session: Delta's, those for ``s3://``.

``python -m windowmill.jobs.spark.jars`` fetches missing and damaged jars of Delta, with ``--s3`` also those to read ``s3://``; with
``--list`` it prints the paths of all that are there, in the form of ``spark-submit --jars``; with ``--java`` the home folder of the Java
that sessions will use, or one line of advice and exit code 1.

The jars that read ``s3://`` are optional, as runs read plain files and all tables of their own without them: Hadoop's client and the parts
of the AWS SDK that it loads, less what Spark has. Hadoop's own dependency, at the same version, is the SDK's bundle, which has 686 MB.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as xml

from windowmill.windowing.errors import MachineError
from windowmill.windowing.settings import IVY_SETTINGS, JARS

#: How long Ivy may take to fetch jars.
FETCH_SECONDS = 300
#: Oldest feature release that runs Spark 4, which is compiled for Java 17.
OLDEST = 17
INSTALLED_UNDER = Path("/usr/lib/jvm")
_RELEASE = re.compile(r'^JAVA_VERSION="(\d[^"]*)"', re.MULTILINE)


class Jar(NamedTuple):
    """A published jar: its Maven coordinates and SHA-256."""

    group: str
    artifact: str
    version: str
    digest: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


_JARS = [Jar(*line.split()) for line in files("windowmill.jobs.spark").joinpath("jars.txt").read_text(encoding="ascii").splitlines()]
# Delta's published dependencies also name Hadoop, Parquet, Jackson and log4j in versions older than those inside Spark. Spark's own
# classes precede them on every class path, so only the jars that Spark lacks are fetched, without their dependencies.
DELTA_JARS = tuple(jar for jar in _JARS if jar.group == "io.delta")
DELTA_VERSION = DELTA_JARS[0].version
#: The jars that read ``s3://``.
S3_JARS = tuple(jar for jar in _JARS if jar.group != "io.delta")


def jars_folder() -> Path:
    """``WINDOWMILL_JARS``, else ``share/windowmill/jars`` of this Python environment, or where that cannot be made the user's cache."""
    if setting := JARS.given():
        return Path(setting).absolute()
    shared = Path(sys.prefix) / "share" / "windowmill" / "jars"
    nearest = next(folder for folder in (shared, *shared.parents) if folder.exists())
    if nearest == shared or os.access(nearest, os.W_OK):
        return shared
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windowmill" / "jars"


def class_archive() -> Path:
    """Class archive that sessions start from, stored with the jars; the JVM ignores one recorded with another Java or other jars."""
    return jars_folder() / "spark-classes.jsa"


def jar_paths() -> list[Path]:
    """Paths of all jars for a session to load; their contents are not verified."""
    folder = jars_folder()
    paths = [folder / jar.name for jar in DELTA_JARS]
    if not all(path.is_file() for path in paths):
        raise MachineError(f"Delta jars are not in {folder}; run `make setup` (or, without the checkout, `windowmill setup`)")
    return paths + ([folder / jar.name for jar in S3_JARS] if has_s3_jars() else [])


def has_s3_jars() -> bool:
    folder = jars_folder()
    return all((folder / jar.name).is_file() for jar in S3_JARS)


def damaged_jars(folder: Path, jars: Sequence[Jar] = DELTA_JARS) -> list[Jar]:
    """Those of ``jars`` that are missing in ``folder`` or not what was published (reads 13 MB)."""
    return [jar for jar in jars if _digest(folder / jar.name) != jar.digest]


def fetch_jars(folder: Path, jars: Sequence[Jar] = DELTA_JARS) -> list[Jar]:
    """Fetch the missing and damaged ones of ``jars``, and return them; makes no request if all are intact."""
    wanted = damaged_jars(folder, jars)
    if not wanted:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            _resolve(wanted, Path(scratch))
            wrong = damaged_jars(Path(scratch), wanted)
            if wrong:
                names = ", ".join(sorted(jar.artifact for jar in wrong))
                raise MachineError(f"fetched jars are not the published ones: {names}; check the Maven mirror in use")
            for jar in wanted:
                (Path(scratch) / jar.name).replace(folder / jar.name)
    except OSError as err:
        raise MachineError(f"jars cannot be written to {folder} ({err.strerror}); set WINDOWMILL_JARS to a writable folder") from err
    return wanted


def pyspark_folder() -> Path:
    """Folder of the package PySpark, which is not imported."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _resolve(wanted: Sequence[Jar], into: Path) -> None:
    """Fetch ``wanted`` by Spark's Ivy; ``WINDOWMILL_IVY_SETTINGS`` may name an Ivy settings file, e.g. for a mirror."""
    ivy = sorted((pyspark_folder() / "jars").glob("ivy-*.jar"))
    if not ivy:
        raise MachineError(f"pyspark in {pyspark_folder()} has no jars; install it again: `make setup`")
    module = xml.Element("ivy-module", version="2.0")
    xml.SubElement(module, "info", organisation="windowmill", module="jars")
    dependencies = xml.SubElement(module, "dependencies")
    for jar in wanted:
        coordinates = {"org": jar.group, "name": jar.artifact, "rev": jar.version}
        xml.SubElement(dependencies, "dependency", coordinates, conf="default->master", transitive="false")
    xml.ElementTree(module).write(into / "ivy.xml")
    command = [f"{find_java().home}/bin/java", "-cp", str(ivy[0]), "org.apache.ivy.Main", "-error", "-ivy", f"{into}/ivy.xml"]
    command += ["-types", "jar", "bundle", "-cache", f"{into}/cache", "-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    if given := IVY_SETTINGS.given():
        command += ["-settings", given]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FETCH_SECONDS)
        output = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    except subprocess.TimeoutExpired:
        output = [f"not found within {FETCH_SECONDS} s"]
    if not all((into / jar.name).is_file() for jar in wanted):
        reasons = [line for line in output if "not found" in line or "error" in line] or output or ["no reason given"]
        raise MachineError(
            f"jars {wanted[0].group} {wanted[0].version} could not be fetched ({reasons[0]}); "
            f"check the network, or name your Maven mirror in an Ivy settings file by WINDOWMILL_IVY_SETTINGS"
        )


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@dataclass(frozen=True)
class Java:
    """One installed Java: its home folder, and the version that it reports, e.g. ``17.0.15`` or ``1.8.0_402``."""

    home: Path
    version: str

    @property
    def major(self) -> int:
        """Feature release: 8 for ``1.8.0_402``, 17 for ``17.0.15``."""
        first, _, rest = self.version.partition(".")
        return int(re.split(r"\D", rest if first == "1" and rest else first)[0])


@cache
def java_at(home: Path) -> Java | None:
    """The Java under ``home``, with the version of its file ``release``, else the one that it reports (0.1 s); null if it has neither."""
    with suppress(OSError):
        if os.access(home / "bin" / "java", os.X_OK) and (written := _RELEASE.search((home / "release").read_text())):
            return Java(home, written[1])
    try:
        answer = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    stated = re.search(r'version "(\d[^"]*)"', answer.stderr + answer.stdout)
    return Java(home, stated[1]) if stated else None


def find_java() -> Java:
    """The Java to run Spark with: that of JAVA_HOME if usable, else that on PATH, else the oldest usable one under /usr/lib/jvm."""
    seen: list[Java] = []
    for home in _homes():
        java = java_at(home)
        if java is not None and java.major >= OLDEST:
            return java
        if java is not None:
            seen.append(java)
    found = "only " + ", ".join(f"{java.version} in {java.home}" for java in seen) if seen else "none"
    raise MachineError(
        f"Spark needs Java {OLDEST} or newer, found {found}; install it (Debian: `apt-get install openjdk-17-jre-headless`) "
        f"or point JAVA_HOME to it"
    )


def _homes() -> Iterator[Path]:
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path).resolve().parent.parent
    # The oldest version first: Spark is tested most on the oldest release that it supports.
    installed = {java.resolve().parent.parent for java in INSTALLED_UNDER.glob("*/bin/java")}
    javas = [java for java in map(java_at, sorted(installed)) if java is not None]
    yield from (java.home for java in sorted(javas, key=lambda java: java.major))


def main() -> int:
    try:
        if sys.argv[1:] == ["--java"]:
            print(find_java().home)
            return 0
        if sys.argv[1:] == ["--list"]:
            print(",".join(map(str, jar_paths())))
            return 0
        for what, jars in {f"Delta {DELTA_VERSION}": DELTA_JARS, "S3": S3_JARS if "--s3" in sys.argv[1:] else ()}.items():
            fetched = fetch_jars(jars_folder(), jars)
            if jars:
                print(f"jars of {what} are in {jars_folder()} ({len(fetched)} fetched, {len(jars) - len(fetched)} were there)")
    except MachineError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
