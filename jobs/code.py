"""The code that a batch depends on: the user's modules, and the time zone data of its windows."""

from __future__ import annotations

import hashlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zoneinfo import TZPATH

from windowmill.checkpoints.batches import Plan
from windowmill.windowing.errors import CodeChangedError
from windowmill.windowing.spec import Custom, Pipeline


def module_names(pipeline: Pipeline) -> list[str]:
    """User modules that the spec names for window functions and aggregates: ``module`` of each ``module:name``."""
    functions = [window.function for window in pipeline.windows if isinstance(window, Custom)]
    functions += [spec.use for spec in pipeline.aggregates.values() if spec.use is not None]
    return sorted({place.partition(":")[0] for place in functions})


def module_digests(pipeline: Pipeline) -> dict[str, str]:
    """SHA-256 of the file of each of these modules, 16 hexadecimal digits; modules without a file are omitted."""
    found = {}
    for name in module_names(pipeline):
        origin = importlib.util.find_spec(name)
        if origin is not None and origin.origin is not None and Path(origin.origin).is_file():
            found[name] = hashlib.sha256(Path(origin.origin).read_bytes()).hexdigest()[:16]
    return found


def check_modules(pipeline: Pipeline, plan: Plan) -> None:
    """Refuse modules that differ from those of ``plan``; raises ``CodeChangedError``."""
    now = module_digests(pipeline)
    for name, digest in plan.modules.items():
        if name in now and now[name] != digest:
            raise CodeChangedError(
                f"pipeline {pipeline.pipeline}: module {name} is not the one that batch {plan.batch} ran (digest {now[name]} instead of "
                f"{digest}), so its results might be inconsistent with the stored state; put the old one back, give the new one its own "
                "sink and backfill it there, or, if it computes the same, run once with --accept-code"
            )


def tzdata_version(pipeline: Pipeline) -> str | None:
    """Version of the time zone data; null if no window has a time zone."""
    if not any(getattr(window, "timezone", None) for window in pipeline.windows):
        return None
    for folder in TZPATH:
        data = Path(folder) / "tzdata.zi"
        if data.is_file():
            with data.open() as lines:
                return lines.readline().removeprefix("# version").strip()
    try:
        return version("tzdata")
    except PackageNotFoundError:
        return None
