"""Rules that a team keeps in files of Great Expectations: ``expectations: [{suite: quality/delays.json}]``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windowmill.windowing.small_files import read_small


def rules_of(entry: Mapping[str, Any], folder: Path) -> Sequence[Mapping[str, Any]]:
    """The rules of the suite that ``entry`` names, as the spec writes rules.

    Parameters
    ----------
    entry
        ``suite``: the JSON file of an expectation suite, relative to ``folder``.
    folder
        The folder of the spec.

    Raises
    ------
    ValueError
        If the file cannot be read, or is no suite: what is wrong, and what to do.
    """
    if len(entry) > 1:
        raise ValueError("got other fields in addition to suite; the rules of a suite bring their own")
    named = entry["suite"]
    if not isinstance(named, str) or not named:
        raise ValueError(f"got {named!r}; expected the path of a suite's JSON file")
    try:
        suite = json.loads(read_small(folder / named))
    except OSError as err:
        raise ValueError(f"{named!r} cannot be read ({err.strerror}); give a path from the folder of the spec") from None
    except (ValueError, RecursionError) as err:
        raise ValueError(f"{named!r} is no JSON ({err}); give the JSON file of a Great Expectations suite") from None
    rules = suite.get("expectations") if isinstance(suite, Mapping) else None
    if not isinstance(rules, list):
        raise ValueError(f"{named!r} has no list 'expectations'; give the JSON file of a Great Expectations suite")
    return [_rule(rule, f"{named!r}, expectation {index}") for index, rule in enumerate(rules)]


def _rule(rule: object, where: str) -> Mapping[str, Any]:
    if not isinstance(rule, Mapping) or not isinstance(rule.get("kwargs", {}), Mapping):
        raise ValueError(f"{where}: expected fields type and kwargs, as Great Expectations writes them")
    if "type" not in rule:
        old = " (this one is of a Great Expectations before 1.0)" if "expectation_type" in rule else ""
        raise ValueError(f"{where}: has no type{old}; write the suite again by Great Expectations 1")
    severity = {"severity": rule["severity"]} if rule.get("severity") else {}
    return {"type": rule["type"], **rule.get("kwargs", {}), **severity}
