"""Reads a pipeline from YAML. Errors name the line, the field, the expected value and the remedy.

A spec may use plain mappings, lists and scalars, and nothing that could blow a small file up.
"""

from __future__ import annotations

import difflib
import errno
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from windowmill.windowing.errors import SpecError
from windowmill.windowing.fields import VARIABLE, Source
from windowmill.windowing.paths import MAX_BYTES, read_small
from windowmill.windowing.redaction import as_written, holds_credentials, holds_secret, names_secret, redacted
from windowmill.windowing.spec import FIELDS_OF_VARIABLES, PLACE, READERS, READING, VARIABLES, Pipeline
from windowmill.windowing.windows.base import TYPES

#: Fields within fields; a spec has six levels.
MAX_DEPTH = 32
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "merge", "value")}

#: A variable while YAML is read. Private characters replace its braces, which in ``{path: ${NAME}}`` would be those of a mapping.
_SHIELDED = re.compile("\\$\ue000([A-Za-z0-9_]+)\ue001")

#: Characters that libyaml treats otherwise than PyYAML's own parser does (found by comparing the two on mutated specs).
#: A percentage such as ``1 %`` is read the same by both.
_READ_OTHERWISE = re.compile("[\t\r?!\x85\u2028\u2029\ufeff]|(?<![0-9])(?<![0-9] )%|[|>][-+0-9]*#")
#: Number of problems of one spec that an error lists; thousands would hide the first.
_MAX_PROBLEMS = 20
#: Limits on the characters of a value, and of a line, in a message.
_SHOWN, _LINE = 120, 900
#: A variable, an escaped dollar sign, or a malformed variable.
_MARK = re.compile(rf"\$\$(?=\{{)|{VARIABLE.pattern}|\$\{{[^}}]{{0,40}}\}}?")
_FIELD = re.compile(r"([a-z_]+(?:\.\w+)*): (.*)", re.DOTALL)
_NO_SECRET = re.compile(r"://(?:[^/@:\s]*:)?@")
_TABLES = ("source", "sink", "checkpoints")
_PATHS = {(table, "path") for table in _TABLES}
#: A field that a spec does not have.
_ABSENT = object()
_Path = tuple[str | int, ...]


def parse_yaml(text: str) -> tuple[Any, Any]:
    """The value of a YAML text, and its node, which has the line of each field; both ``None`` for an empty text.

    Raises ``yaml.YAMLError`` if the text is not valid, or uses what a spec may not.
    """
    if _FastLoader is not None and not _READ_OTHERWISE.search(text):
        # PyYAML's own parser takes ten times as long; it is asked for the message if something is wrong.
        with suppress(yaml.YAMLError):
            return _document(_FastLoader, text)
    return _document(_PlainLoader, text)


def _document(parser: Any, text: str) -> tuple[Any, Any]:
    loader = parser(VARIABLE.sub("$\ue000\\1\ue001", text))
    node = loader.get_single_node()
    return (loader.construct_document(node) if node is not None else None), node


class _SpecRules:
    """Safe YAML without aliases, tags, deep nesting, names that are no text, and names given twice.

    Names are text as they are written: an aggregate may be called ``on`` or ``null``.
    """

    _depth = 0

    def compose_node(self: Any, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        mark: Any = event.start_mark
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not read; write the value out", mark)
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"fields lie within one another more than {MAX_DEPTH} deep; write it flat", mark)
        self._depth += 1
        try:
            node = yaml.composer.Composer.compose_node(self, parent, index)
        finally:
            self._depth -= 1
        if node is not None and node.tag not in _TAGS:
            raise yaml.composer.ComposerError(None, None, f"the tag {node.tag!r} is not read; write a plain value", node.start_mark)
        return node

    def compose_scalar_node(self: Any, anchor: Any) -> Any:
        node = yaml.composer.Composer.compose_scalar_node(self, anchor)
        node.value = _SHIELDED.sub(r"${\1}", node.value)
        return node

    def compose_mapping_node(self: Any, anchor: Any) -> Any:
        node = yaml.composer.Composer.compose_mapping_node(self, anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "a list or mapping is given as a field's name", key.start_mark)
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"the field {key.value[:80]!r} is given twice", key.start_mark)
            seen.add(key.value)
        return node

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> Any:  # noqa: ARG002 - a spec is a tree, so all of it is made at once
        return {key.value: self.construct_object(item, deep=True) for key, item in node.value}

    def construct_object(self: Any, node: Any, deep: bool = False) -> Any:
        try:
            return yaml.constructor.SafeConstructor.construct_object(self, node, deep=deep)
        except (ValueError, KeyError, AttributeError, TypeError, IndexError, OverflowError) as err:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"got {str(node.value)[:80]!r}, which is no {kind}; put text into quotes", node.start_mark
            ) from err


class _PlainLoader(_SpecRules, yaml.SafeLoader):
    pass


_FastLoader: Any = None
if yaml.__with_libyaml__:

    class _CLoader(_SpecRules, yaml.composer.Composer, yaml.CSafeLoader):
        """Events from libyaml; nodes and values as :class:`_PlainLoader` makes them."""

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            yaml.composer.Composer.__init__(self)

    _FastLoader = _CLoader


def load_pipeline(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None, *, opens_tables: bool = True) -> Pipeline:
    """Read and check the pipeline in the YAML file ``path``.

    Parameters
    ----------
    path
        The file; at most 1 MiB.
    environment
        Values of ``${NAME}``; by default the environment of the process.
    opens_tables
        Whether the pipeline's tables are opened: if not, variables in their fields need no value.

    Raises
    ------
    SpecError
        With one line per problem: file, line, field, value and expected value. Values from the environment are shown as written,
        ``${NAME}``.
    """
    return read_spec(path, environment, opens_tables=opens_tables).pipeline


@dataclass(frozen=True)
class ReadSpec:
    """A pipeline with what messages about its spec need."""

    #: The pipeline.
    pipeline: Pipeline
    #: File name, for messages.
    name: str
    #: Line number from 1 by path of a field.
    lines: Mapping[_Path, int] = field(default_factory=dict)
    #: Text with variables that hold secrets as written -> the text with their values.
    secret: Mapping[str, str] = field(default_factory=dict)
    #: Those of ``secret`` outside paths of tables, which messages show.
    hidden: Mapping[str, str] = field(default_factory=dict)

    def problem(self, path: str, message: str) -> str:
        """The message line about a problem in the field ``path`` (dotted), with secrets from the environment as written."""
        steps = tuple(int(step) if step.isdigit() else step for step in path.split(".") if step)
        return f"{_where(self.name, steps, self.lines)}: {as_written(message, self.secret)}"


def read_spec(
    path: str | os.PathLike[str], environment: Mapping[str, str] | None = None, *, opens_tables: bool = True, readers: Sequence[str] = ()
) -> ReadSpec:
    """As :func:`load_pipeline`, with line numbers and variables for messages about the spec.

    ``readers``: the files of specs whose sources lead to this one.
    """
    try:
        raw = read_small(path)
    except (OSError, ValueError) as err:
        why = err.strerror if isinstance(err, OSError) else "a file's name has no null character"
        if isinstance(err, OSError) and err.errno == errno.EFBIG:
            raise SpecError(f"{path}: {why}; a spec has at most {MAX_BYTES}") from err
        raise SpecError(f"{str(path)!r}: cannot be read ({why}); give the path of a pipeline's YAML file") from err
    try:
        # Editors on Windows begin a file with a byte order mark.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise SpecError(f"{path}: not UTF-8 text ({err.reason} at byte {err.start}); save it as UTF-8") from err
    try:
        value, node = parse_yaml(text)
    except yaml.MarkedYAMLError as err:
        line = err.problem_mark.line + 1 if err.problem_mark else 1
        raise SpecError(f"{path}:{line}: not readable as YAML: {_cut(err.problem or err.context or '')}; correct this line") from err
    except yaml.reader.ReaderError as err:
        line = text.count("\n", 0, err.position) + 1
        raise SpecError(
            f"{path}:{line}: not readable as YAML: the character U+{ord(text[err.position]):04X} is not allowed; take it out"
        ) from err
    return _read(value, str(path), environment, _lines(node), opens_tables, (*readers, os.path.realpath(path)))


def upstream_of(source: Source, context: Mapping[str, Any]) -> tuple[Pipeline, str]:
    """The pipeline whose results are the ``source``, and the absolute path of its spec; ``context`` is that of the validation.

    Raises ``SpecError`` if it cannot be read, or its own source leads to the spec that names it.
    """
    path = os.path.abspath(Path(context.get(PLACE, "")).parent / str(source.pipeline))  # noqa: PTH100 - Path.resolve would follow links
    readers: Sequence[str] = context.get(READERS, ())
    there = os.path.realpath(path)
    if there in readers:
        circle = " → ".join(Path(name).name for name in (*readers[readers.index(there) :], there))
        raise SpecError(f"source.pipeline: got {source.pipeline!r}, by which a pipeline would read its own results: {circle}")
    try:
        return read_spec(path, readers=readers, **context.get(READING, {})).pipeline, path
    except SpecError as err:
        raise SpecError(f"source.pipeline: {str(err).splitlines()[0]}") from err


def parse_pipeline(value: object, *, environment: Mapping[str, str] | None = None, opens_tables: bool = True) -> Pipeline:
    if isinstance(value, Pipeline):
        return value
    return _read(value, "pipeline", environment, {}, opens_tables).pipeline


def _read(
    value: object,
    name: str,
    environment: Mapping[str, str] | None,
    lines: Mapping[_Path, int],
    opens_tables: bool,
    readers: Sequence[str] = (),
) -> ReadSpec:
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{name}: holds {'nothing' if value is None else type(value).__name__}; expected fields such as pipeline:, source:, windows: "
            "(see the README's example)"
        )
    filling = _Filling(name, os.environ if environment is None else environment, lines, opens_tables)
    filled = filling.fill(value, ())
    for table in _TABLES:
        filling.look_for_credentials(value.get(table), (table,))
    entries = filled.get("expectations")
    if isinstance(entries, list) and any(map(_names_suite, entries)):
        filled, value, lines = _with_suites(filled, value, lines, filling)
    if filling.problems:
        raise SpecError(_joined(filling.problems))
    try:
        reading = {"environment": environment, "opens_tables": opens_tables}
        context = {PLACE: name, READERS: readers, READING: reading}
        pipeline = Pipeline.model_validate(filled, context=context | {VARIABLES: filling.filled, FIELDS_OF_VARIABLES: filling.fields})
    except ValidationError as err:
        errors = err.errors(include_url=False)
        # pydantic also reports a list whose items failed as too short; only the items' own errors help.
        failed = {location[:end] for location in (e["loc"] for e in errors) for end in range(len(location))}
        errors = [e for e in errors if not (e["type"] == "too_short" and e["loc"] in failed) and not _of_other_member(e)]
        described = (_describe(error, name, lines, value) for error in errors[: _MAX_PROBLEMS + 1])
        raise SpecError(_joined([as_written(line, filling.secret) for line in described])) from None
    return ReadSpec(pipeline, name, lines, filling.secret, filling.hidden)


def _names_suite(entry: object) -> bool:
    return isinstance(entry, Mapping) and "suite" in entry


def _with_suites(filled: Any, written: Any, lines: Mapping[_Path, int], filling: _Filling) -> tuple[Any, Any, Mapping[_Path, int]]:
    """Put the rules of suites in the place of the entries that name them; what goes wrong is a problem of ``filling``."""
    rules: list[tuple[int, Any, Any]] = []
    for index, entry in enumerate(filled["expectations"]):
        if not _names_suite(entry):
            rules.append((index, entry, written["expectations"][index]))
            continue
        try:
            rules += [(index, rule, rule) for rule in _suite_rules(entry, Path(filling.name).parent)]
        except ValueError as err:
            filling.refuse(("expectations", index, "suite"), str(err))
    own = {path: line for path, line in lines.items() if path[:1] != ("expectations",) or len(path) == 1}
    for place, (index, *_) in enumerate(rules):
        below = {path: line for path, line in lines.items() if path[:2] == ("expectations", index)}
        own |= {("expectations", place, *path[2:]): line for path, line in below.items()}
    return {**filled, "expectations": [rule for _, rule, _ in rules]}, {**written, "expectations": [rule for *_, rule in rules]}, own


@dataclass
class _Filling:
    """Replaces ``${NAME}`` by values of the environment, and collects the problems."""

    name: str
    environment: Mapping[str, str]
    lines: Mapping[_Path, int]
    opens_tables: bool
    problems: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    filled: dict[str, str] = field(default_factory=dict)
    fields: dict[_Path, dict[str, str]] = field(default_factory=dict)
    secret: dict[str, str] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)

    def fill(self, value: Any, path: _Path) -> Any:
        if len(path) > MAX_DEPTH:
            self.refuse(path[:8], f"fields lie within one another more than {MAX_DEPTH} deep; write it flat")
            return None
        if path[1:] == ("storage_options",):
            return value  # the names of variables, which are read when a table is opened
        if path[:2] == ("source", "options") and str(path[-1]).startswith("kafka.") and names_secret(str(path[-1])):
            return value  # likewise, when a client of Kafka is made
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    self.refuse(path, f"got {shown(key)} as a field's name; expected text")
            return {key: self.fill(item, (*path, key)) for key, item in value.items() if isinstance(key, str)}
        if isinstance(value, list | tuple):
            return [self.fill(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            self.refuse(path, f"got a whole number of {value.bit_length()} bits; expected one that fits into 64")
            return 0
        return self._text(value, path) if isinstance(value, str) else value

    def look_for_credentials(self, value: Any, path: _Path) -> None:
        """Refuse literal credentials in or below ``value``, a table's fields before variables are replaced."""
        if isinstance(value, Mapping) and len(path) < MAX_DEPTH:
            for name, item in value.items():
                self.look_for_credentials(item, (*path, str(name)))
        elif isinstance(value, str):
            # Variables are not literal credentials, so remove them: key:${SECRET}@ becomes key:@.
            literal = _NO_SECRET.sub("://", VARIABLE.sub("", value))
            if holds_credentials(literal) or (path[-2:-1] == ("options",) and holds_credentials(f"{path[-1]}={literal}")):
                self.refuse(path, "holds credentials; leave them to the machine's own settings, or name them as ${NAME}")

    def _text(self, text: str, path: _Path) -> str:
        def replace(mark: re.Match[str]) -> str:
            if mark[0] == "$$":
                return "$"
            if mark[1] is None:
                self.refuse(path, f"got {mark[0]!r}; expected the name of an environment variable, as in ${{NAME}} ($${{ is the text ${{)")
            elif mark[1] not in self.environment:
                if not self.opens_tables and path[0] in _TABLES and path[-1] not in ("filter", "pipeline"):
                    return mark[1]  # in place of the value, so that the field's form can be checked
                if mark[1] not in self.missing:  # one problem, however many fields name it
                    self.refuse(path, f"the environment variable {mark[1]} is not set; export {mark[1]}=…, then run again")
                self.missing.add(mark[1])
            else:
                return self.environment[mark[1]]
            return mark[0]

        filled_text = _MARK.sub(replace, text)
        if VARIABLE.search(text):
            named = {f"${{{name}}}": self.environment[name] for name in VARIABLE.findall(text) if name in self.environment}
            self.filled |= {text: filled_text, **named}
            self.fields[path] = {text: filled_text, **named}
            secret = {mark: value for mark, value in named.items() if holds_secret(mark[2:-1])}
            if secret:
                self.secret |= {text: filled_text, **secret}
                self.hidden |= {} if path in _PATHS else {text: filled_text, **secret}
        return filled_text

    def refuse(self, path: _Path, message: str) -> None:
        if len(self.problems) <= _MAX_PROBLEMS:
            self.problems.append(f"{_where(self.name, path, self.lines)}: {message}")


def shown(value: object) -> str:
    """``value`` for a message: on one line, shortened, as written in YAML, with credentials redacted."""
    try:
        if value is None or isinstance(value, bool):
            text = {None: "null", True: "true", False: "false"}[value]
        elif isinstance(value, float) and not math.isfinite(value):
            text = ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        else:
            text = value.isoformat() if isinstance(value, date) else repr(value)
    except (ValueError, RecursionError):
        text = f"a {type(value).__name__}"
    return redacted(_cut(text, _SHOWN))


def _cut(text: str, limit: int = _LINE) -> str:
    return text if len(text) <= limit else f"{text[: limit - 20]}… ({len(text)} characters)"


def _joined(problems: Iterable[str]) -> str:
    lines = list(dict.fromkeys(problems))
    more = ["… and more of the kind"] if len(lines) > _MAX_PROBLEMS else []
    return "\n".join([_cut(" ".join(line.splitlines())) for line in lines[:_MAX_PROBLEMS]] + more)


def _where(name: str, path: _Path, lines: Mapping[_Path, int]) -> str:
    known = next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), None)
    field = ".".join(_step(step) for step in path)
    return f"{name}{f':{known}' if known else ''}{f': {field}' if field else ''}"


def _step(step: str | int) -> str:
    text = str(step)
    return text if text.isprintable() and len(text) <= _SHOWN else shown(text)


def _of_other_member(error: Any) -> bool:
    """Whether the error concerns the other member of a union of text and fields than the one that the value was meant as."""
    meant_as_fields = isinstance(error["input"], Mapping)
    kind, member = error["type"], error["loc"][-1:]
    return (kind == "string_type" and member == ("str",) and meant_as_fields) or (
        kind == "model_type" and member == ("AssetSchedule",) and not meant_as_fields
    )


def _describe(error: Any, name: str, lines: Mapping[_Path, int], written: Any) -> str:
    # pydantic includes the tag of a union's chosen member in the path; the spec has no such level.
    path: list[str | int] = []
    for index, step in enumerate(error["loc"]):
        of_union = step in _UNION_STEPS or (index and isinstance(error["loc"][index - 1], int) and step in TYPES.imported())
        if not of_union and step != "[key]":
            path.append(step)
    where = _where(name, tuple(path), lines)
    kind, value, context = error["type"], _at(written, path, error.get("input")), error.get("ctx", {})
    if kind == "extra_forbidden":
        known = _fields_at(error["loc"])
        near = difflib.get_close_matches(str(path[-1]), known, 1)
        return f"{where}: unknown field; " + (f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(known)}")
    if kind == "missing" or (kind == "model_type" and _at(written, path, _ABSENT) is _ABSENT):
        return f"{where}: missing; add this field"
    if kind == "string_pattern_mismatch":
        return f"{where}: got {shown(error['input'] if '[key]' in error['loc'] else value)}; expected text matching {context['pattern']}"
    if kind in _EXPECTED:
        return f"{where}: got {shown(value)}; expected {_EXPECTED[kind].format(**context)}"
    if kind == "union_tag_invalid":
        return f"{_where(name, (*path, 'type'), lines)}: got {shown(value.get('type'))}; expected one of {context['expected_tags']}"
    if kind == "literal_error":
        return f"{where}: got {shown(value)}; expected one of {context['expected']}"
    if kind == "union_tag_not_found":
        return f"{where}: got {shown(value)}; expected a mapping with a type, one of {', '.join(sorted(TYPES.imported()))}"
    message = redacted(error["msg"].removeprefix("Value error, "))
    if (named := _FIELD.match(message)) and isinstance(value, Mapping):
        # The message of a rule about several fields begins with the field to correct, named from the mapping on that holds them.
        below = [int(step) if step.isdigit() else step for step in named[1].split(".")]
        if not path or below[0] in value:
            return f"{_where(name, (*path, *below), lines)}: {named[2]}"
    if isinstance(value, Mapping) or message.startswith(("windows.", "time.", "aggregates", "keys:")):
        return f"{where}: {message}"
    return f"{where}: got {shown(value)}; {message}"


def _at(written: Any, path: list[str | int], otherwise: Any) -> Any:
    """The value at ``path`` with variables as written; ``otherwise`` if there is none."""
    for step in path:
        try:
            written = written[step]
        except (KeyError, IndexError, TypeError):
            return otherwise
    return written


#: Expected value, in words of a spec, by pydantic's type of error.
_EXPECTED = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "fields, as in {{name: value}}"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list, as in [a, b]"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    "string_too_short": "at least {min_length} character",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length}",
    "greater_than": "a number greater than {gt}",
    "greater_than_equal": "a number from {ge}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "string_unicode": "text of whole characters",
}
_UNION_STEPS = {"AirflowSettings", "AssetSchedule", "str", "int", "float", "datetime"}


def _fields_at(location: _Path) -> list[str]:
    model: type[BaseModel] | None = Pipeline
    for step in location[:-1]:
        if isinstance(step, int) or model is None:
            continue
        if step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation)
        elif step in TYPES.imported():
            model = TYPES[step]
    return list(model.model_fields) if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in getattr(annotation, "__args__", ()) if (found := _model_in(part)) is not None), None)


def _lines(node: Any) -> dict[_Path, int]:
    """Line numbers, from 1, of the fields of the document ``node``."""
    if node is None:
        return {}
    lines: dict[_Path, int] = {}
    waiting: list[tuple[Any, _Path, Any]] = [(node, (), node)]
    while waiting:
        item, at, marked = waiting.pop()
        lines[at] = marked.start_mark.line + 1
        if isinstance(item, yaml.MappingNode):
            waiting += [(below, (*at, key.value), key) for key, below in item.value]
        elif isinstance(item, yaml.SequenceNode):
            waiting += [(below, (*at, index), below) for index, below in enumerate(item.value)]
    return lines


def _suite_rules(entry: Mapping[str, Any], folder: Path) -> Sequence[Mapping[str, Any]]:
    """The rules of the suite that ``entry`` names, as the spec writes rules.

    Its ``suite`` is the JSON file of an expectation suite, relative to the ``folder`` of the spec. Raises ``ValueError`` if the file cannot
    be read, or is no suite: what is wrong, and what to do.
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
    return [_suite_rule(rule, f"{named!r}, expectation {index}") for index, rule in enumerate(rules)]


def _suite_rule(rule: object, where: str) -> Mapping[str, Any]:
    if not isinstance(rule, Mapping) or not isinstance(rule.get("kwargs", {}), Mapping):
        raise ValueError(f"{where}: expected fields type and kwargs, as Great Expectations writes them")
    if "type" not in rule:
        old = " (this one is of a Great Expectations before 1.0)" if "expectation_type" in rule else ""
        raise ValueError(f"{where}: has no type{old}; write the suite again by Great Expectations 1")
    severity = {"severity": rule["severity"]} if rule.get("severity") else {}
    return {"type": rule["type"], **rule.get("kwargs", {}), **severity}
