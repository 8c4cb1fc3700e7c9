"""Finds a Java that can run Spark.

``python -m windowmill.jobs.spark.java`` prints the home folder of the Java that sessions will use, or one line of advice and exit code 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from windowmill.windowing.errors import MachineError

OLDEST = 17
"""Oldest feature release that runs Spark 4, which is compiled for Java 17."""

INSTALLED_UNDER = Path("/usr/lib/jvm")


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


_RELEASE = re.compile(r'^JAVA_VERSION="(\d[^"]*)"', re.MULTILINE)


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
        print(find_java().home)
    except MachineError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
