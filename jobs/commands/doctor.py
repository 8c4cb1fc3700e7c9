"""``windowmill doctor``, ``setup`` and ``serve``: this machine, what an installed package lacks on it, and a server that keeps Spark warm.

What may be lacking are jars, the class archive of the JVM, and compiled kernels.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from packaging.requirements import Requirement
from rich.text import Text

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.protocol import check_conditional_writes, check_scheme
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.commands.terminal import Answer, AsJson, errors, report, show, wrapped
from windowmill.jobs.spark.connect_server import Server, ServerLimits
from windowmill.jobs.spark.jars import (
    DELTA_JARS,
    DELTA_VERSION,
    S3_JARS,
    Jar,
    class_archive,
    damaged_jars,
    fetch_jars,
    find_java,
    jars_folder,
    java_at,
)
from windowmill.jobs.spark.spark_settings import SERVER
from windowmill.windowing.errors import MachineError, PluginError, ServerGoneError
from windowmill.windowing.kernels.__main__ import forget_stale, stale_code, warm
from windowmill.windowing.kernels.slices import hopping_windows
from windowmill.windowing.redaction import redacted
from windowmill.windowing.registry import all_added, named_plugins
from windowmill.windowing.settings import DRIVER_MEMORY, MASTER, SETTINGS, misspelt

GIB = 1 << 30
LOW_DISK_BYTES = 2 * GIB
AIRFLOW_BYTES = 2 * GIB
"""What Airflow's scheduler, API server and DAG processor take together, without Spark's driver."""

MARKS = {True: ("ok", "green"), "warn": ("warn", "yellow"), False: ("WRONG", "bold red")}


@dataclass(frozen=True)
class Check:
    """One thing looked at: whether it is right, what was found, and what to do if it is not."""

    name: str
    ok: bool | Literal["warn"]
    found: str
    advice: str = ""


def examine() -> list[Check]:
    """Look at everything that a run needs; starts no Spark and takes about a second."""
    folder = _warehouse()
    return [
        check_java(),
        check_jars(),
        *check_s3_jars(),
        check_class_archive(),
        check_kernels(),
        check_worker_python(),
        *check_versions(),
        check_warehouse(folder),
        check_disk(folder),
        check_port(),
        check_memory(),
        *check_server(),
        *check_plugins(),
        *check_settings(),
    ]


def judged(checks: list[Check]) -> Answer:
    width = max(len(check.name) for check in checks)
    margin = " " * (6 + width + 2)
    text = Text()
    for check in checks:
        mark, style = MARKS[check.ok]
        lines = wrapped(check.found, margin, margin).removeprefix(margin)
        text.append(f"{mark:<6}", style).append(f"{check.name:<{width}}  {lines}\n")
        if check.ok is not True:
            text.append(wrapped(check.advice, f"{margin}-> ", f"{margin}   ") + "\n", style)
    wrong = sum(check.ok is False for check in checks)
    warned = sum(check.ok == "warn" for check in checks)
    text.append(f"{wrong} wrong, {warned} to check, {len(checks) - wrong - warned} fine")
    found = [{"name": c.name, "result": MARKS[c.ok][0].lower(), "found": c.found, "advice": c.advice} for c in checks]
    return Answer({"wrong": wrong, "warned": warned, "checks": found}, text)


def check_java() -> Check:
    try:
        java = find_java()
    except MachineError as problem:
        return Check("Java", False, "no usable Java", str(problem))
    found = f"{java.version} in {java.home}"
    asked = os.environ.get("JAVA_HOME")
    if asked and Path(asked) != java.home:
        other = java_at(Path(asked))
        said = f"Java {other.version}, too old for Spark" if other else "no Java that starts"
        return Check("Java", "warn", f"{found}, but JAVA_HOME is {asked}: {said}", "point JAVA_HOME to the Java found, or unset it")
    return Check("Java", True, found)


def check_jars() -> Check:
    return _check_jars("Delta jars", DELTA_JARS, DELTA_VERSION, "run `make setup` (or, without the checkout, `windowmill setup`)")


def check_s3_jars() -> list[Check]:
    """The jars with which Spark reads S3 are whole; nothing where none has been fetched: few sources need them."""
    there = any((jars_folder() / jar.name).exists() for jar in S3_JARS)
    return [_check_jars("S3 jars", S3_JARS, str(len(S3_JARS)), "run `make s3-jars` (or `windowmill setup --s3`)")] if there else []


def _check_jars(name: str, jars: Sequence[Jar], what: str, advice: str) -> Check:
    folder = jars_folder()
    if damaged := damaged_jars(folder, jars):
        return Check(name, False, f"missing or damaged in {folder}: {', '.join(jar.artifact for jar in damaged)}", advice)
    return Check(name, True, f"{what} in {folder}")


def check_class_archive() -> Check:
    archive = class_archive()
    if not archive.is_file():
        return Check("Class archive", "warn", f"not in {archive.parent}: Spark starts 4 s slower", "run `windowmill setup`")
    return Check("Class archive", True, str(archive))


def check_kernels() -> Check:
    """The compiled kernels are in numba's cache, in a folder of the package or of the user, and younger than their sources."""
    folder, advice = Path(hopping_windows.dispatcher.stats.cache_path), "run `windowmill setup`"
    if not hopping_windows.is_compiled:
        found = f"not compiled yet in {folder}: that takes some minutes once"
        return Check("Kernels", "warn", found, f"{advice}, or let the first runs do it")
    if stale_code():
        return Check("Kernels", False, f"some in {folder} are older than their sources, and numba may go on using them", advice)
    return Check("Kernels", True, f"compiled in {folder}")


def check_worker_python() -> Check:
    asked = os.environ.get("PYSPARK_PYTHON")
    if not asked or asked == sys.executable:
        return Check("Worker Python", True, f"{sys.executable}, as the driver")
    if (MASTER.given() or "local[*]").startswith("local"):
        return Check("Worker Python", "warn", f"PYSPARK_PYTHON={asked} is passed over by local sessions", "unset PYSPARK_PYTHON")
    advice = "install the locked packages for it, or point PYSPARK_PYTHON to a Python that has them on every worker"
    probe = "import sys; print('%d.%d' % sys.version_info[:2]); import pyarrow, numba"
    try:
        answer = subprocess.run([asked, "-c", probe], capture_output=True, text=True, timeout=20, check=True)
    except FileNotFoundError:
        found = f"PYSPARK_PYTHON={asked} is not on this machine, so it was not tried"
        return Check("Worker Python", "warn", found, "make sure that the workers have it")
    except (OSError, subprocess.SubprocessError) as err:
        said = (getattr(err, "stderr", "") or str(err)).strip().splitlines()[-1]
        return Check("Worker Python", False, f"PYSPARK_PYTHON={asked}: {said}", advice)
    driver = f"{sys.version_info.major}.{sys.version_info.minor}"
    if answer.stdout.strip() != driver:
        return Check("Worker Python", False, f"PYSPARK_PYTHON={asked} is {answer.stdout.strip()}, the driver is {driver}", advice)
    return Check("Worker Python", True, f"PYSPARK_PYTHON={asked}, {driver} as the driver")


def check_versions() -> list[Check]:
    try:
        declared = [Requirement(line) for line in metadata.requires("windowmill") or []]
    except metadata.PackageNotFoundError:
        return [Check("Packages", False, "windowmill is not installed", "run `make setup`")]
    wrong = []
    for requirement in declared:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "airflow"}):
            continue
        installed = _installed(requirement.name)
        if installed is None and requirement.marker is not None:
            continue  # this machine does without Airflow
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            needs = f"{installed or 'missing'}, needs {requirement.specifier or 'any version'}"
            wrong.append(Check(requirement.name, False, needs, "run `make setup`, or pip install --upgrade windowmill"))
    if wrong:
        return wrong
    versions = {name: _installed(name) for name in ("pyspark", "deltalake", "great-expectations", "pandas", "numba")}
    airflow = _installed("apache-airflow")
    found = [f"{name} {version}" for name, version in versions.items()]
    found.append(f"apache-airflow {airflow}" if airflow else "no Airflow (pip install windowmill[airflow])")
    return [Check("Packages", True, ", ".join(found))]


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_warehouse(folder: Path | None) -> Check:
    if folder is None:
        return _check_bucket(os.environ["WAREHOUSE"].rstrip("/"))
    place = _nearest_existing(folder)
    advice = "set WAREHOUSE to a folder that you may write"
    if not place.is_dir():
        return Check("Warehouse", False, f"{folder}: {place} is not a folder", advice)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as err:
        return Check("Warehouse", False, f"{folder} cannot be written: {err.strerror}", advice)
    origin = "WAREHOUSE" if os.environ.get("WAREHOUSE") else "the working directory's, as WAREHOUSE is not set"
    made = "" if folder == place else "; made by the first run of a spec that names it"
    return Check("Warehouse", True, f"{folder} ({origin}{made})")


def _check_bucket(place: str) -> Check:
    """The warehouse in object storage can be reached and written, and keeps two writers apart."""
    try:
        check_scheme(place)
        check_conditional_writes(place, [place], lambda _: None)
    except MachineError as problem:
        what, _, advice = str(problem).rpartition("; ")
        return Check("Warehouse", False, what, advice)
    return Check("Warehouse", True, f"{redacted(place)} can be written, and keeps two writers apart")


def check_disk(folder: Path | None) -> Check:
    places = {_nearest_existing(place) for place in (folder, Path(tempfile.gettempdir())) if place is not None}
    free, place = min((shutil.disk_usage(place).free, place) for place in places)
    found = f"{free / GIB:.1f} GiB free at {place}"
    if free < LOW_DISK_BYTES:
        return Check("Disk", "warn", found, f"free some space: under {LOW_DISK_BYTES // GIB} GiB, Spark may stop in the middle of a batch")
    return Check("Disk", True, found)


def check_port() -> Check:
    port = int(os.environ.get("AIRFLOW__API__PORT") or 8080)
    with socket.socket() as probe:
        probe.settimeout(1)
        busy = probe.connect_ex(("127.0.0.1", port)) == 0
    if busy:
        return Check("Airflow port", "warn", f"{port} is in use", "fine if it is your Airflow; another one is set by AIRFLOW__API__PORT")
    return Check("Airflow port", True, f"{port} is free")


def check_memory() -> Check:
    total = min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_container_limits()])
    asked = DRIVER_MEMORY.given() or "4g"
    found = f"{total / GIB:.1f} GiB, Spark's driver takes up to {asked}"
    try:
        driver = _parse_bytes(asked)
    except ValueError:
        return Check("Memory", False, f"WINDOWMILL_DRIVER_MEMORY={asked} is not a size", "write it as 4g or 3500m")
    if total < driver + AIRFLOW_BYTES:
        spare = max((total - AIRFLOW_BYTES) // (1 << 20), 1024)
        return Check("Memory", "warn", found, f"leave {AIRFLOW_BYTES // GIB} GiB for Airflow: set WINDOWMILL_DRIVER_MEMORY={spare}m")
    return Check("Memory", True, found)


def check_server() -> list[Check]:
    """The Spark Connect server that ``SPARK_REMOTE`` names answers, and runs can use it; nothing if none is named."""
    address = os.environ.get(SERVER)
    if not address:
        return []
    from windowmill.jobs.spark import remote  # loads pyspark and gRPC

    try:
        server = remote.examine(address)
    except ServerGoneError as gone:
        return [Check("Spark Connect", "warn", str(gone), "start it (`windowmill serve`); until then each run starts Spark of its own")]
    except MachineError as err:
        return [_wrong("Spark Connect", err)]
    if problem := server.problem():
        return [_wrong("Spark Connect", f"{redacted(address)} {problem}")]
    served = f", windowmill {server.release}" if server.release else ""
    return [Check("Spark Connect", True, f"{redacted(address)} answers: Spark {server.version} with Delta{served}")]


def _wrong(name: str, problem: object) -> Check:
    """A check that failed with a ``problem`` whose message ends with the advice."""
    found, _, advice = str(problem).partition("; ")
    return Check(name, False, found, advice)


def check_plugins() -> list[Check]:
    """Plugins can be imported, and what each has added; nothing if there are none."""
    plugins = named_plugins()
    if not plugins:
        return []
    try:
        added = all_added()
    except PluginError as problem:
        return [_wrong("Plugins", problem)]
    modules = [f"{plugin.module} (named by {plugin.named_by})" for plugin in plugins]
    things = [f"{kind} {name} of {module}" for kind, name, module in added]
    return [Check("Plugins", True, f"{', '.join(modules)}: {', '.join(things) or 'nothing added'}")]


def _warehouse() -> Path | None:
    place = os.environ.get("WAREHOUSE") or "warehouse"
    path = local_path(place)
    return None if path is None else path.absolute()


def _nearest_existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _container_limits() -> Iterator[int]:
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        if limit.is_file() and (stated := limit.read_text().strip()).isdigit():
            yield int(stated)


def _parse_bytes(size: str) -> int:
    """Bytes of a size as the JVM takes it, such as ``4g``."""
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
    text = size.strip().lower().removesuffix("b")
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def check_settings() -> list[Check]:
    """The variables of the environment that windowmill reads are those that someone meant to set; nothing where none is set."""
    if wrong := misspelt():
        found = ", ".join(wrong)
        return [Check("Settings", "warn", f"{found}: not read", f"did you mean {', '.join(wrong.values())}?")]
    given = [f"{setting.name}={redacted(value)}" for setting in SETTINGS if (value := setting.given())]
    return [Check("Settings", True, ", ".join(given))] if given else []


def set_up(progress: Progress, *, with_s3: bool) -> Answer:
    """Get what is missing; raises ``MachineError`` if there is no Java, or something that is needed cannot be made."""
    find_java()
    folder = jars_folder()
    # Names, words for progress, how to see whether it is there, and how to get it.
    steps: list[tuple[str, str, Callable[[], Check], Callable[[], Any]]] = [
        ("jars", "Delta's jars", check_jars, lambda: fetch_jars(folder)),
        *([("s3-jars", "jars with which Spark reads s3://", _check_s3, lambda: fetch_jars(folder, S3_JARS))] if with_s3 else []),
        ("archive", "the JVM's archive of loaded classes, half a minute", check_class_archive, _record_archive),
        ("kernels", "compiled kernels, some minutes", check_kernels, _compile_kernels),
    ]
    done, jars_are_new = [], False
    for name, doing, check, get in steps:
        # The JVM ignores an archive that was recorded with other jars.
        missing = check().ok is not True or (name == "archive" and jars_are_new)
        jars_are_new = jars_are_new or (missing and name in ("jars", "s3-jars"))
        if missing:
            try:
                with progress.step(name, doing):
                    get()
            except MachineError as err:
                if name != "archive":
                    raise
                progress.say(f"  {err}")
        found = check()
        result = "was there" if not missing else "made" if found.ok is True else "failed"
        done.append({"name": name, "result": result, "found": found.found})
    done.insert(0, {"name": "java", "result": "was there", "found": check_java().found})
    made = sum(step["result"] == "made" for step in done)
    failed = [step["name"] for step in done if step["result"] == "failed"]
    others = f"{', '.join(failed)} failed" if failed else "the others were there"
    text = f"ready: {made} of {len(done)} made, {others}; `windowmill doctor` checks the rest of this machine"
    return Answer({"steps": done}, text)


def _check_s3() -> Check:
    damaged = damaged_jars(jars_folder(), S3_JARS)
    return Check("S3 jars", not damaged, f"{len(S3_JARS) - len(damaged)} of {len(S3_JARS)} in {jars_folder()}")


def _record_archive() -> None:
    from windowmill.jobs.spark.session import record_class_archive  # imports PySpark

    record_class_archive()


def _compile_kernels() -> None:
    forget_stale()
    warm()


def setup(
    with_s3: Annotated[bool, typer.Option("--s3", help="Also fetch the jars with which Spark reads s3:// (13 MB).")] = False,
    as_json: AsJson = False,
) -> None:
    """Get what Spark and the kernels need and this machine lacks: Delta's jars, an archive of classes, compiled code. Minutes, once."""
    show(set_up(Progress(errors), with_s3=with_s3), as_json)


def doctor(as_json: AsJson = False) -> None:
    """Check this machine: Java, jars, worker Python, versions, warehouse, disk, ports, the server that SPARK_REMOTE names."""
    answer = judged(examine())
    show(answer, as_json)
    raise typer.Exit(1 if answer.data["wrong"] else 0)


def serve(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 15002,
    idle_minutes: Annotated[int, typer.Option("--idle-minutes", min=0, help="End after this time without a client; 0 for never.")] = 0,
    max_age_hours: Annotated[
        int, typer.Option("--max-age-hours", min=0, help="Restart Spark after this time, once no client is connected; 0 for never.")
    ] = 24,
    max_memory_gib: Annotated[
        int, typer.Option("--max-memory-gib", min=0, help="Restart Spark when it takes more, once no client is connected; 0 for never.")
    ] = 8,
    as_json: AsJson = False,
) -> None:
    """Keep Spark warm on this machine, and print the address for SPARK_REMOTE; ends on SIGTERM and Ctrl-C."""

    def ready(server: Server) -> None:
        data = {"address": server.address, "port": server.port, "pid": server.pid, "seconds": round(time.monotonic() - begun, 1)}
        show(Answer(data, server.address), as_json)

    begun = time.monotonic()
    server = Server(port, ServerLimits(idle_minutes * 60, max_age_hours * 3_600, max_memory_gib << 30), report)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.end())
    report(f"windowmill: starting and warming up Spark on port {server.port}, which takes about a minute")
    report(f"windowmill: the server has ended: {server.keep(ready)}")
