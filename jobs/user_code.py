"""The code that a batch depends on: the user's modules, and the time zone data of its windows."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from zoneinfo import TZPATH

from windowmill.checkpoints.batches import Plan
from windowmill.jobs.sources.base import KINDS
from windowmill.windowing.catalogue import DECLARED
from windowmill.windowing.errors import CodeChangedError
from windowmill.windowing.registry import RUNNING
from windowmill.windowing.slicing.edges import zone_named
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import TYPES

_WEEK_SECONDS = 7 * 86_400
#: Its own modules change with its release, which plans record.
_PACKAGE = "windowmill"


def module_names(pipeline: Pipeline) -> list[str]:
    """User modules that the spec depends on: those that it names (``module`` of each ``module:name``), and plugins with those they name."""
    named: list[object] = [place for window in pipeline.windows for place in window.functions().values()]
    named += [spec.use for spec in pipeline.aggregates.values()]
    modules = {place.partition(":")[0] for place in named if isinstance(place, str)}
    # What plugins have registered, and runs of the spec use.
    parts: list[object] = []
    for spec in pipeline.aggregates.values():
        if spec.use is None and DECLARED.module_of(spec.function) is not None:
            parts += [spec.declaration.algebra, spec.declaration.recipe]
    if pipeline.source is not None and KINDS.module_of(pipeline.source.format) is not None:
        parts.append(KINDS[pipeline.source.format].open)
    by_plugins = {part.partition(":")[0] for part in parts if isinstance(part, str)}
    return sorted(modules | plugin_modules(pipeline) | {each for each in by_plugins if each and each.partition(".")[0] != _PACKAGE})


def edited_parts(pipeline: Pipeline, plan: Plan) -> dict[tuple[str, str], str]:
    """The windows and aggregates, by field and name, whose module or time zone differs from ``plan``'s, with why; refuses other modules."""
    digests, own = module_digests(pipeline), pipeline.model_copy(update={"source": None})
    edited = {name for name, digest in plan.modules.items() if digests.get(name, digest) != digest}
    zones = {name for name, digest in zone_digests(pipeline, plan.now_us).items() if plan.zones.get(name, digest) != digest}
    alone = {("windows", each.name): own.model_copy(update={"windows": (each,), "aggregates": {}}) for each in pipeline.windows}
    alone |= {
        ("aggregates", name): own.model_copy(update={"windows": (), "aggregates": {name: spec}})
        for name, spec in pipeline.aggregates.items()
    }
    found: dict[tuple[str, str], str] = {}
    for part, one in alone.items():
        reasons = [f"module {name} was edited (digest {digests[name]})" for name in module_names(one) if name in edited]
        own_zones = sorted(zones & {window.zone for window in one.windows})
        reasons += [f"time zone {name} has other offsets in the time zone data of this machine" for name in own_zones]
        if reasons:
            found[part] = "; ".join(reasons)
    if edited - {name for one in alone.values() for name in module_names(one)}:
        check_code(pipeline, plan)
    return found


def plugin_modules(pipeline: Pipeline) -> set[str]:
    """Modules of plugins that have registered what the spec names. A notebook is none: it has no file to compare or to bring elsewhere."""
    modules = {DECLARED.module_of(spec.function) for spec in pipeline.aggregates.values() if spec.use is None}
    modules |= {TYPES.module_of(window.type) for window in pipeline.windows}
    if pipeline.source is not None:
        modules.add(KINDS.module_of(pipeline.source.format))
    return {module for module in modules if module is not None and module != RUNNING}


def module_digests(pipeline: Pipeline) -> dict[str, str]:
    """SHA-256 of the file of each of these modules, 16 hexadecimal digits; modules without a file are omitted."""
    found = {}
    for name in module_names(pipeline):
        try:
            origin = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # its package; what is wrong is reported where it is used
            continue
        if origin is not None and origin.origin is not None and Path(origin.origin).is_file():
            found[name] = hashlib.sha256(Path(origin.origin).read_bytes()).hexdigest()[:16]
    return found


def check_code(pipeline: Pipeline, plan: Plan) -> None:
    """Refuse modules that differ from those of ``plan``, and time zone data in which zones had other offsets until it was made.

    Raises ``CodeChangedError``.
    """
    now, named = module_digests(pipeline), module_names(pipeline)
    for name, digest in plan.modules.items():
        # The spec is the one that the plan was made for: only what plugins have registered can come from elsewhere.
        if name not in named:
            raise CodeChangedError(
                f"pipeline {pipeline.pipeline}: module {name}, which batch {plan.batch} ran, no longer registers what the spec names, so "
                "results might be inconsistent with the stored state; put the old one back, give the new one its own sink and backfill it "
                "there, or, if it computes the same, run once with --accept-code"
            )
        if name in now and now[name] != digest:
            raise CodeChangedError(
                f"pipeline {pipeline.pipeline}: module {name} is not the one that batch {plan.batch} ran (digest {now[name]} instead of "
                f"{digest}), so its results might be inconsistent with the stored state; put the old one back, give the new one its own "
                "sink and backfill it there, or, if it computes the same, run once with --accept-code; `windowmill apply SPEC` recomputes "
                "what uses it"
            )
    for name, digest in zone_digests(pipeline, plan.now_us).items():
        if plan.zones.get(name, digest) != digest:
            raise CodeChangedError(
                f"pipeline {pipeline.pipeline}: time zone {name} has other offsets in the time zone data of this machine "
                f"({tzdata_version()}) than in those that batch {plan.batch} ran with ({plan.tzdata}), so its windows might be "
                "inconsistent with the stored state; install those, give the pipeline a new sink and backfill it there, or, if no event "
                "lies where they differ, run once with --accept-code"
            )


def zone_digests(pipeline: Pipeline, through_us: int) -> dict[str, str]:
    """SHA-256 of the offsets from UTC, from 1970 through an instant, of each zone that a window names, 16 hexadecimal digits."""
    return {name: _zone_digest(name, through_us) for name in sorted({window.zone for window in pipeline.windows if window.zone})}


def _zone_digest(name: str, through_us: int) -> str:
    """Offsets are compared week by week; where they differ, the second of the change is searched."""
    zone, through = zone_named(name), through_us // 1_000_000

    def offset(second: int) -> float:
        return (datetime.fromtimestamp(second, zone).utcoffset() or timedelta()).total_seconds()

    offsets = [(0, offset(0))]
    for begin in range(0, through, _WEEK_SECONDS):
        low, high = begin, min(begin + _WEEK_SECONDS, through)
        if (after := offset(high)) == offsets[-1][1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if offset(middle) == after else (middle, high)
        offsets.append((high, after))
    return hashlib.sha256(json.dumps(offsets).encode()).hexdigest()[:16]


def tzdata_version() -> str | None:
    """Version of the time zone data; null if it is unknown."""
    for folder in TZPATH:
        data = Path(folder) / "tzdata.zi"
        if data.is_file():
            with data.open() as lines:
                return lines.readline().removeprefix("# version").strip()
    try:
        return version("tzdata")
    except PackageNotFoundError:
        return None
