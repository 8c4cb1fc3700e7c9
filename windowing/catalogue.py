"""The aggregates that a spec may name: how each is written, and what else holds of it wherever it is computed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is known of an aggregate without its columns.

    Attributes
    ----------
    form
        How its argument is written, for messages.
    columns
        Its argument columns, by position or name.
    options
        Its further arguments, by name.
    star
        Whether ``"*"`` may stand for the column.
    takes
        What its columns must hold; null: anything.
    partial
        ``numbers``: columns of numbers, which kernels combine and slices hold. ``objects``: Python objects. ``none``: an event counts
        differently in each window, so nothing is combined.
    picks
        Whether results are values of the last column, or lists of them, as they are.
    """

    form: str = "a column"
    columns: tuple[str, ...] = ("column",)
    options: tuple[str, ...] = ()
    star: bool = False
    takes: Literal["number", "boolean"] | None = None
    partial: Literal["numbers", "objects", "none"] = "numbers"
    picks: bool = False


def _pair(first: str, second: str, **rest: Any) -> Declaration:
    return Declaration(f"two columns, as in [{first}, {second}]", (first, second), **rest)


_NUMBER = Declaration(takes="number")
_K = Declaration("{column: …, k: a whole number}", options=("k",), partial="objects", picks=True)
DECLARED: Mapping[str, Declaration] = {
    "count": Declaration('"*" or a column', star=True),
    **dict.fromkeys(("count_distinct", "approx_distinct", "concat"), Declaration(partial="objects")),
    **dict.fromkeys(("sum", "mean", "geometric_mean", "product", "range"), _NUMBER),
    "time_weighted_mean": Declaration(takes="number", partial="none"),
    **dict.fromkeys(("min", "max", "first", "last"), Declaration(picks=True)),
    **dict.fromkeys(("min_count", "max_count"), Declaration()),
    **dict.fromkeys(("var_samp", "var_pop", "stddev_samp", "stddev_pop", "skewness", "kurtosis"), _NUMBER),
    **dict.fromkeys(("collect", "collect_distinct"), Declaration(partial="objects", picks=True)),
    **dict.fromkeys(("bool_and", "bool_or"), Declaration(takes="boolean", picks=True)),
    "weighted_mean": _pair("value", "weight", takes="number"),
    **dict.fromkeys(("arg_min", "arg_max"), _pair("by", "value", picks=True)),
    **dict.fromkeys(("covar_samp", "corr", "linear_trend"), _pair("x", "y", takes="number")),
    **dict.fromkeys(("top_k", "bottom_k"), _K),
    "quantile": Declaration("{column: …, q: between 0 and 1}", options=("q",), takes="number", partial="objects"),
    "histogram": Declaration("{column: …, edges: [ascending numbers]}", options=("edges",), takes="number"),
}
#: An aggregate of the user's own.
_OWN = Declaration('use: "module:name"', columns=(), partial="objects")


class AggregateSpec(BaseModel):
    """One aggregate of a pipeline.

    Attributes
    ----------
    function
        A name of the catalogue, or ``use`` for the user's own.
    columns
        Argument columns in the function's order; empty for ``count: "*"``.
    options
        Further arguments: ``k``, ``q``, ``edges``.
    where
        A Spark SQL condition; rows for which it does not hold are skipped.
    use
        ``module:name`` of the user's own aggregate.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: str
    columns: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    where: str | None = None
    use: str | None = None

    @property
    def declaration(self) -> Declaration:
        """What holds of the function."""
        return _OWN if self.use is not None else DECLARED[self.function]


def parse_aggregate(value: object) -> AggregateSpec:
    """Read ``{mean: delay}``, ``{top_k: {column: delay, k: 3}, where: …}`` or ``{use: "module:name", args: […]}``."""
    if isinstance(value, AggregateSpec):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected one aggregate, such as {mean: delay}")
    fields = {str(name): argument for name, argument in value.items()}
    where = fields.pop("where", None)
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise ValueError("where: expected a Spark SQL condition; leave it out where there is none")
    if "use" in fields:
        return _parse_own(fields, where)
    if len(fields) != 1:
        raise ValueError(f"expected exactly one function; got {', '.join(fields) or 'none'}")
    [(function, argument)] = fields.items()
    if function not in DECLARED:
        near = difflib.get_close_matches(function, DECLARED, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(DECLARED))}"
        raise ValueError(f"unknown aggregate {function!r}{hint}")
    return _parse_known(function, argument, where)


def _parse_own(fields: dict[str, Any], where: str | None) -> AggregateSpec:
    use, columns = fields.pop("use"), fields.pop("args", [])
    if fields:
        raise ValueError(f"unknown field {next(iter(fields))!r} beside use; known are use, args, where")
    module, _, name = use.partition(":") if isinstance(use, str) else ("", "", "")
    if not (module.replace(".", "_").isidentifier() and name.replace(".", "_").isidentifier()):
        raise ValueError(f'use: got {use!r}; expected "module:name"')
    if not isinstance(columns, list) or not all(map(_is_column, columns)):
        raise ValueError("args: expected a list of columns")
    return AggregateSpec(function="use", use=use, columns=tuple(columns), where=where)


def _parse_known(function: str, argument: object, where: str | None) -> AggregateSpec:
    declared = DECLARED[function]
    wrong = ValueError(f"{function}: got {argument!r}; expected {declared.form}")
    if declared.star and argument == "*":
        return AggregateSpec(function=function, where=where)
    if declared.options:
        if not isinstance(argument, Mapping) or set(argument) != {"column", *declared.options} or not _is_column(argument["column"]):
            raise wrong
        options = {name: argument[name] for name in declared.options}
        if not _options_fit(options):
            raise wrong
        return AggregateSpec(function=function, columns=(argument["column"],), options=options, where=where)
    columns = [argument] if isinstance(argument, str) else argument
    if not isinstance(columns, list | tuple) or len(columns) != len(declared.columns):
        raise wrong
    if not all(map(_is_column, columns)):
        raise wrong
    return AggregateSpec(function=function, columns=tuple(columns), where=where)


def _is_column(value: object) -> bool:
    return isinstance(value, str) and value not in ("", "*")


def _options_fit(options: Mapping[str, Any]) -> bool:
    def number(value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    def ascending(edges: object) -> bool:
        return isinstance(edges, list) and len(edges) > 1 and all(map(number, edges)) and all(a < b for a, b in pairwise(edges))

    def positive(k: object) -> bool:
        return isinstance(k, int) and not isinstance(k, bool) and 0 < k <= 1_000_000_000

    def fraction(q: object) -> bool:
        return isinstance(q, int | float) and not isinstance(q, bool) and 0 <= q <= 1

    fits: dict[str, Callable[[object], bool]] = {"k": positive, "q": fraction, "edges": ascending}
    return all(fits[name](value) for name, value in options.items())


def dump_aggregate(spec: AggregateSpec) -> dict[str, Any]:
    """The written form again; ``parse_aggregate`` of it gives ``spec``."""
    written: dict[str, Any]
    if spec.use:
        written = {"use": spec.use, "args": list(spec.columns)}
    elif spec.options:
        written = {spec.function: {"column": spec.columns[0], **spec.options}}
    else:
        columns = list(spec.columns)
        written = {spec.function: columns if len(columns) > 1 else columns[0] if columns else "*"}
    return written | ({"where": spec.where} if spec.where else {})


def _json_schema() -> dict[str, Any]:
    """JSON schema of an aggregate as it is written."""
    column: dict[str, Any] = {"type": "string", "minLength": 1}
    options: dict[str, dict[str, Any]] = {
        "k": {"type": "integer", "minimum": 1},
        "q": {"type": "number", "minimum": 0, "maximum": 1},
        "edges": {"type": "array", "items": {"type": "number"}, "minItems": 2},
    }

    def argument(declared: Declaration) -> dict[str, Any]:
        if declared.options:
            fields = {"column": column} | {name: options[name] for name in declared.options}
            return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
        number = len(declared.columns)
        listed = {"type": "array", "items": column, "minItems": number, "maxItems": number}
        return listed if number > 1 else {"anyOf": [column, listed]}

    known = {name: argument(declared) for name, declared in DECLARED.items()}
    own = {"use": {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}, "args": {"type": "array", "items": column}}
    return {
        "type": "object",
        "properties": known | own | {"where": {"type": "string", "minLength": 1}},
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in (*known, "use")],
    }


Aggregates = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")],
        Annotated[
            AggregateSpec,
            BeforeValidator(parse_aggregate),
            PlainSerializer(dump_aggregate, return_type=dict),
            WithJsonSchema(_json_schema()),
        ],
    ],
    Field(min_length=1),
]
