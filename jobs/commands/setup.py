"""``windowmill setup``: gets what an installed package lacks: jars, the class archive of the JVM, compiled kernels.

``windowmill doctor`` decides what is missing, so that both commands agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.commands import doctor
from windowmill.jobs.commands.doctor import Check
from windowmill.jobs.commands.terminal import Answer
from windowmill.jobs.spark.jars import S3_JARS, damaged_jars, fetch_jars, jars_folder
from windowmill.jobs.spark.java import find_java
from windowmill.windowing.errors import MachineError


@dataclass(frozen=True, slots=True)
class _Step:
    """What is set up: its name and words for progress, how to see whether it is there, and how to get it."""

    name: str
    doing: str
    check: Callable[[], Check]
    get: Callable[[], Any]


def set_up(progress: Progress, *, with_s3: bool) -> Answer:
    """Get what is missing; raises ``MachineError`` if there is no Java, or something that is needed cannot be made."""
    find_java()
    steps = [
        _Step("jars", "Delta's jars", doctor.check_jars, lambda: fetch_jars(jars_folder())),
        *(
            [_Step("s3-jars", "jars with which Spark reads s3://", _check_s3, lambda: fetch_jars(jars_folder(), S3_JARS))]
            if with_s3
            else []
        ),
        _Step("archive", "the JVM's archive of loaded classes, half a minute", doctor.check_class_archive, _record_archive),
        _Step("kernels", "compiled kernels, some minutes", doctor.check_kernels, _compile_kernels),
    ]
    done, jars_are_new = [], False
    for step in steps:
        # The JVM ignores an archive that was recorded with other jars.
        missing = step.check().ok is not True or (step.name == "archive" and jars_are_new)
        jars_are_new = jars_are_new or (missing and step.name in ("jars", "s3-jars"))
        if missing:
            try:
                with progress.step(step.name, step.doing):
                    step.get()
            except MachineError as err:
                if step.name != "archive":
                    raise
                progress.say(f"  {err}")
        found = step.check()
        result = "was there" if not missing else "made" if found.ok is True else "failed"
        done.append({"name": step.name, "result": result, "found": found.found})
    done.insert(0, {"name": "java", "result": "was there", "found": doctor.check_java().found})
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
    from windowmill.windowing.kernels.__main__ import forget_stale, warm  # imports numba

    forget_stale()
    warm()
