"""Reading a pipeline from YAML, with errors that name the line, the field, what was expected and what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from windowing.errors import SpecError
from windowing.spec import Pipeline

MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_Path = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (they can blow a small file up) and without keys given twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not read; write the value out", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the field {key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_pipeline(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> Pipeline:
    """Read and check the pipeline in the YAML file ``path``.

    Parameters
    ----------
    path
        The file; at most 1 MiB.
    environment
        What ``${NAME}`` stands for; the process' environment unless given.

    Raises
    ------
    SpecError
        With a line for each thing that is wrong: file, line, field, value, what was expected.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as err:
        raise SpecError(f"{path}: cannot be read ({err.strerror}); give the path of a pipeline's YAML file") from err
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{path}: {len(raw)} bytes; a spec has at most {MAX_BYTES}")
    try:
        loader = _Loader(raw.decode())
        node = loader.get_single_node()
        value = loader.construct_document(node) if node is not None else None
    except UnicodeDecodeError as err:
        raise SpecError(f"{path}: not UTF-8 text ({err.reason} at byte {err.start}); save it as UTF-8") from err
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + 1 if err.problem_mark else 1
        raise SpecError(f"{path}:{line}: not readable as YAML: {err.problem or err.context}; correct this line") from err
    return parse_pipeline(value, name=str(path), environment=environment, lines=_lines(node))


def parse_pipeline(
    value: object, *, name: str = "pipeline", environment: Mapping[str, str] | None = None, lines: Mapping[_Path, int] | None = None
) -> Pipeline:
    """Check a pipeline given as nested mappings; ``lines`` maps field paths to line numbers for messages."""
    if isinstance(value, Pipeline):
        return value
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{name}: holds {type(value).__name__}; expected fields such as pipeline:, source:, windows: (see the README's example)"
        )
    problems: list[str] = []
    filled = _substitute(value, os.environ if environment is None else environment, (), problems, name, lines or {})
    if problems:
        raise SpecError("\n".join(problems))
    try:
        return Pipeline.model_validate(filled)
    except ValidationError as err:
        errors = err.errors()
        # A list whose items failed is also "too short" to pydantic; only the items' own errors help.
        errors = [
            e
            for e in errors
            if not (e["type"] == "too_short" and any(o["loc"][: len(e["loc"])] == e["loc"] and o is not e for o in errors))
        ]
        raise SpecError("\n".join(_describe(error, name, lines or {}) for error in errors)) from err


def _substitute(value: Any, environment: Mapping[str, str], path: _Path, problems: list[str], name: str, lines: Mapping[_Path, int]) -> Any:
    if isinstance(value, Mapping):
        return {key: _substitute(item, environment, (*path, key), problems, name, lines) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, environment, (*path, index), problems, name, lines) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1] not in environment:
            problems.append(
                f"{_where(name, path, lines)}: the environment variable {match[1]} is not set; export {match[1]}=… and try again"
            )
            return ""
        return environment[match[1]]

    return _VARIABLE.sub(replace, value)


def _where(name: str, path: _Path, lines: Mapping[_Path, int]) -> str:
    known = next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), None)
    field = ".".join(str(step) for step in path)
    return f"{name}{f':{known}' if known else ''}{f': {field}' if field else ''}"


def _describe(error: Any, name: str, lines: Mapping[_Path, int]) -> str:
    # pydantic puts the tag of a union's chosen member into the path; the spec has no such level.
    path: list[str | int] = []
    for index, step in enumerate(error["loc"]):
        if not (index and isinstance(error["loc"][index - 1], int) and step in _WINDOW_TYPES) and step not in _UNION_STEPS:
            path.append(step)
    where = _where(name, tuple(path), lines)
    kind, value, context = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "extra_forbidden":
        known = _fields_at(error["loc"])
        near = difflib.get_close_matches(str(path[-1]), known, 1)
        return f"{where}: unknown field; " + (f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(known)}")
    if kind == "missing":
        return f"{where}: missing; add this field"
    if kind == "string_pattern_mismatch":
        return f"{where}: got {value!r}; expected text matching {context['pattern']}"
    if kind in ("union_tag_invalid", "literal_error"):
        expected = context.get("expected_tags") or context.get("expected")
        return f"{where}: got {value.get('type') if isinstance(value, Mapping) else value!r}; expected one of {expected}"
    if kind == "union_tag_not_found":
        return f"{where}: got {value!r}; expected a mapping with a type, one of {', '.join(sorted(_WINDOW_TYPES))}"
    message = error["msg"].removeprefix("Value error, ")
    if isinstance(value, Mapping) or message.startswith(("windows.", "time.", "aggregates", "keys:")):
        return f"{where}: {message}"
    return f"{where}: got {value!r}; {message}"


_WINDOW_TYPES = {"tumbling", "hopping", "cumulative", "session", "snapshot", "count", "custom", "sliding"}
_UNION_STEPS = {"AssetSchedule", "str", "int", "float", "datetime"}


def _fields_at(location: _Path) -> list[str]:
    """Names of the fields that the model at ``location``'s parent knows."""
    model: type[BaseModel] | None = Pipeline
    for step in location[:-1]:
        if isinstance(step, int) or model is None:
            continue
        if step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation)
        elif step in _WINDOW_TYPES:
            model = next(kind for kind in _window_models() if kind.model_fields["type"].annotation.__args__[0] == step)
    return list(model.model_fields) if model else []


def _window_models() -> list[Any]:
    from windowing import spec

    return [spec.Tumbling, spec.Hopping, spec.Cumulative, spec.Session, spec.Snapshot, spec.Count, spec.Custom, spec.Sliding]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _model_in(part)) is not None), None)


def _lines(node: Any, path: _Path = ()) -> dict[_Path, int]:
    if node is None:
        return {}
    found = {path: node.start_mark.line + 1}
    if isinstance(node, yaml.MappingNode):
        for key, item in node.value:
            below = _lines(item, (*path, key.value))
            found |= below | {(*path, key.value): key.start_mark.line + 1}
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            found |= _lines(item, (*path, index))
    return found
