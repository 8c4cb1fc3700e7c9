"""The aggregates that a spec may name: how each is written, what holds of it, and where the functions that compute it are."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from windowmill.windowing.errors import PluginError
from windowmill.windowing.registry import Registry

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Option:
    """A further argument of an aggregate.

    Attributes
    ----------
    fits
        Whether a value can be taken.
    schema
        JSON schema of such values.
    default
        Value where specs write none, which then is not among the options of an aggregate; null: they must write one.
    """

    fits: Callable[[object], bool]
    schema: Mapping[str, Any]
    default: Any = None


@dataclass(frozen=True, slots=True)
class Declaration:
    """An aggregate: how it is written, what holds of it, and the functions that compute it.

    A function is given itself, or as ``"module:name"`` to be imported when it is needed: the catalogue is read where nothing is computed.

    Attributes
    ----------
    name
        As specs write it.
    algebra
        Builds its lift, combine and lower in Python from an :class:`AggregateSpec` and the types of the columns; null if it has a recipe.
    recipe
        Its atoms and how results are computed from them, for the kernels and for stored slices
        (:class:`windowmill.windowing.kernels.recipes.Recipe`); null: partials are Python objects, combined by
        ``algebra``, and slices hold them as bytes.
    plain
        The plainest computation, for the reference engine: of the non-null values of a window (tuples if there are several columns; at
        least one) and the options. Null: the reference engine folds ``algebra`` over the window's rows; of windowmill's own aggregates
        it has another computation.
    form
        How its argument is written, for messages.
    columns
        Its argument columns, by position; with ``options`` it has one, by the name ``column``.
    options
        Its further arguments, by name.
    star
        Whether ``"*"`` may replace the column.
    takes
        What its columns must hold; null: anything. Booleans are the numbers 0 and 1.
    instants
        Whether instants are numbers, too: microseconds since 1970.
    orders
        Whether values of its first column are compared: they must have an order.
    picks
        Whether results are values of the last column, or lists of them, as they are.
    clipped
        Whether an event counts differently in each window, by its time inside. Then partials are combined only of slices, to which events
        are clipped; it has a recipe.
    """

    name: str
    algebra: Callable[..., Any] | str | None = None
    recipe: Any = None
    plain: Callable[..., Any] | str | None = None
    form: str = "a column"
    columns: tuple[str, ...] = ("column",)
    options: Mapping[str, Option] = field(default_factory=dict)
    star: bool = False
    takes: Literal["number", "boolean", "text"] | None = None
    instants: bool = False
    orders: bool = False
    picks: bool = False
    clipped: bool = False

    @property
    def partial(self) -> Literal["numbers", "objects", "none"]:
        """What is combined of rows: columns of numbers, which kernels combine; Python objects; or nothing."""
        if self.clipped or self is _EXPRESSION:
            return "none"
        return "objects" if self.recipe is None else "numbers"


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_K = Option(lambda k: isinstance(k, int) and not isinstance(k, bool) and 0 < k <= 1_000_000_000, {"type": "integer", "minimum": 1})
_Q = Option(lambda q: _is_number(q) and 0 <= q <= 1, {"type": "number", "minimum": 0, "maximum": 1})
_EXACT = Option(lambda exact: isinstance(exact, bool), {"type": "boolean"}, default=False)
_EDGES = Option(
    lambda edges: isinstance(edges, list) and len(edges) > 1 and all(map(_is_number, edges)) and all(a < b for a, b in pairwise(edges)),
    {"type": "array", "items": {"type": "number"}, "minItems": 2},
)


def _objects(family: str, *names: str, **facts: Any) -> dict[str, Declaration]:
    """Aggregates whose partials are objects; the algebra of each is ``build_<name>`` in the module ``family``."""
    return {name: Declaration(name, f"windowmill.windowing.aggregates.{family}:build_{name}", **facts) for name in names}


def _numbers(*names: str, **facts: Any) -> dict[str, Declaration]:
    """Aggregates whose partials are numbers; the recipe of each is ``<NAME>`` in ``kernels.recipes``."""
    return {name: Declaration(name, recipe=f"windowmill.windowing.kernels.recipes:{name.upper()}", **facts) for name in names}


def _two(first: str, second: str) -> dict[str, Any]:
    return {"form": f"two columns, as in [{first}, {second}]", "columns": (first, second)}


#: Every aggregate, in the order in which messages and the JSON schema list them.
DECLARED: Registry[Declaration] = Registry(
    "aggregate",
    {
        **_numbers("count", form='"*" or a column', star=True),
        **_objects("unordered", "count_distinct"),
        **_objects("unordered", "approx_distinct"),
        **_objects("order", "concat", takes="text"),
        **_numbers("sum", "mean", "geometric_mean", "product", takes="number"),
        **_numbers("range", takes="number"),
        **_numbers("time_weighted_mean", takes="number", clipped=True),
        **_numbers("min", "max", orders=True, picks=True),
        **_numbers("first", "last", picks=True),
        **_numbers("min_count", "max_count", orders=True),
        **_numbers("var_samp", "var_pop", "stddev_samp", "stddev_pop", "skewness", "kurtosis", takes="number"),
        **_objects("order", "collect", "collect_distinct", picks=True),
        **_numbers("bool_and", "bool_or", takes="boolean", picks=True),
        **_numbers("weighted_mean", **_two("value", "weight"), takes="number"),
        **_numbers("arg_min", "arg_max", **_two("by", "value"), orders=True, picks=True),
        **_numbers("covar_samp", "corr", "linear_trend", **_two("x", "y"), takes="number"),
        **_objects("unordered", "top_k", "bottom_k", form="{column: …, k: a whole number}", options={"k": _K}, orders=True, picks=True),
        **_objects("unordered", "median", takes="number", instants=True),
        **_objects(
            "unordered",
            "quantile",
            form="{column: …, q: between 0 and 1}, with exact: true to keep every different value",
            options={"q": _Q, "exact": _EXACT},
            takes="number",
            instants=True,
        ),
        **_numbers("histogram", form="{column: …, edges: [ascending numbers]}", options={"edges": _EDGES}, takes="number"),
    },
)
#: What other engines call an aggregate of the catalogue.
_ELSEWHERE = {
    **dict.fromkeys(("avg", "average"), "mean"),
    **dict.fromkeys(("percentile", "percentile_approx", "approx_percentile", "quantile_disc", "percentile_disc"), "quantile"),
    **dict.fromkeys(("percentile_cont", "quantile_cont", "percentile_50", "p50"), "median"),
    **dict.fromkeys(("std", "stdev", "stddev", "standard_deviation"), "stddev_samp"),
    **dict.fromkeys(("var", "variance"), "var_samp"),
    **dict.fromkeys(("distinct", "nunique", "distinct_count"), "count_distinct"),
    **dict.fromkeys(("approx_count_distinct", "hll"), "approx_distinct"),
    **dict.fromkeys(("collect_list", "array_agg", "list"), "collect"),
    "collect_set": "collect_distinct",
    **dict.fromkeys(("string_agg", "listagg", "group_concat"), "concat"),
    **dict.fromkeys(("max_by", "argmax"), "arg_max"),
    **dict.fromkeys(("min_by", "argmin"), "arg_min"),
    "first_value": "first",
    "last_value": "last",
    "every": "bool_and",
    "some": "bool_or",
    "skew": "skewness",
}
#: Spark SQL over the keys and the other aggregates of a result row.
_EXPRESSION = Declaration("expr", form='expr: "late / flights"', columns=())
#: An aggregate of the user's own.
_OWN = Declaration("use", "windowmill.windowing.aggregates:build_own", form='use: "module:name"', columns=())


def register_aggregate(declaration: Declaration, module: str) -> None:
    """Let specs name the aggregate; ``module`` is the name of the module that registers it.

    Raises ``PluginError`` if its name is taken, or it has a name or columns that no spec can write.
    """
    if not declaration.name.isidentifier() or declaration.name in ("use", "args", "where", "expr"):
        raise PluginError(
            f"plugin {module!r}: no aggregate can be named {declaration.name!r}; choose letters, digits and underscores, but not use, "
            "args, where or expr, which are fields of aggregates"
        )
    if declaration.recipe is None and (declaration.algebra is None or declaration.clipped):
        why = "which clipped aggregates need" if declaration.clipped else "or algebra, which combines partials that are Python objects"
        raise PluginError(f"plugin {module!r}: the aggregate {declaration.name!r} has no recipe; give it one, {why}")
    if declaration.algebra is None and declaration.plain is None:
        raise PluginError(
            f"plugin {module!r}: the aggregate {declaration.name!r} has a recipe alone; give it plain too, by which the reference engine "
            "computes it, or algebra"
        )
    if declaration.options and (declaration.columns != ("column",) or "column" in declaration.options):
        raise PluginError(
            f"plugin {module!r}: the aggregate {declaration.name!r} has options in addition to columns {list(declaration.columns)}; with "
            "options, specs write {column: …, <option>: …}: leave columns out, and name no option column"
        )
    DECLARED.register(declaration.name, declaration, module)


class AggregateSpec(BaseModel):
    """One aggregate of a pipeline.

    Attributes
    ----------
    function
        A name of the catalogue, or ``use`` for the user's own.
    columns
        Argument columns in the function's order; empty for ``count: "*"``.
    options
        Further arguments by name, such as ``k``, ``q``, ``edges``.
    where
        A Spark SQL condition; rows for which it does not hold are skipped.
    use
        ``module:name`` of the user's own aggregate.
    expr
        Spark SQL over the keys and the other aggregates of a result row, of an aggregate that is computed of these.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: str
    columns: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    where: str | None = None
    use: str | None = None
    expr: str | None = None

    @property
    def declaration(self) -> Declaration:
        """What holds of the function.

        Raises ``PluginError`` if it is not registered in this process: a worker of Spark, where a notebook has registered it.
        """
        if self.use is not None or self.expr is not None:
            return _OWN if self.expr is None else _EXPRESSION
        if self.function not in DECLARED:
            raise PluginError(
                f"the aggregate {self.function!r} is not registered in this process; register it in a module that WINDOWMILL_PLUGINS "
                "names: workers of Spark cannot import a notebook or the script that is running"
            )
        return DECLARED[self.function]


def parse_aggregate(value: object) -> AggregateSpec:
    """Read ``{mean: delay}``, ``{top_k: {column: delay, k: 3}, where: …}`` or ``{use: "module:name", args: […]}``."""
    if isinstance(value, AggregateSpec):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected one aggregate, such as {mean: delay}")
    fields = {str(name): argument for name, argument in value.items()}
    where = fields.pop("where", None)
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise ValueError(f"where: got {where!r}; expected a Spark SQL condition; leave it out where there is none")
    if "use" in fields:
        return _parse_own(fields, where)
    if "expr" in fields:
        return _parse_expression(fields, where)
    if len(fields) != 1:
        raise ValueError(f"expected exactly one function; got {', '.join(fields) or 'none'}")
    [(function, argument)] = fields.items()
    if function not in DECLARED:
        named = _ELSEWHERE.get(function.lower())
        near = [named] if named else difflib.get_close_matches(function.lower(), DECLARED, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(DECLARED))}"
        raise ValueError(f"unknown aggregate {function!r}{hint}")
    return _parse_known(function, argument, where)


def _parse_own(fields: dict[str, Any], where: str | None) -> AggregateSpec:
    use, columns = fields.pop("use"), fields.pop("args", [])
    if fields:
        raise ValueError(f"unknown field {next(iter(fields))!r} in addition to use; known are use, args, where")
    module, _, name = use.partition(":") if isinstance(use, str) else ("", "", "")
    if not (module.replace(".", "_").isidentifier() and name.replace(".", "_").isidentifier()):
        raise ValueError(f'use: got {use!r}; expected "module:name"')
    if not isinstance(columns, list) or not all(map(_is_column, columns)):
        raise ValueError(f"args: got {columns!r}; expected a list of columns")
    return AggregateSpec(function="use", use=use, columns=tuple(columns), where=where)


def _parse_expression(fields: dict[str, Any], where: str | None) -> AggregateSpec:
    text = fields.pop("expr")
    other = "where" if where is not None else next(iter(fields), None)
    if other is not None:
        raise ValueError(f"unknown field {other!r} in addition to expr, which is computed of a result row")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"expr: got {text!r}; expected Spark SQL over the keys and the other aggregates of a result row")
    return AggregateSpec(function="expr", expr=text)


def _parse_known(function: str, argument: object, where: str | None) -> AggregateSpec:
    declared = DECLARED[function]
    wrong = ValueError(f"{function}: got {argument!r}; expected {declared.form}")
    if declared.star and argument == "*":
        return AggregateSpec(function=function, where=where)
    if declared.options:
        required = {"column", *(name for name, option in declared.options.items() if option.default is None)}
        if not isinstance(argument, Mapping) or not required <= set(argument) <= {"column", *declared.options}:
            raise wrong
        options = {name: argument[name] for name in declared.options if name in argument}
        if not _is_column(argument["column"]) or not all(declared.options[name].fits(value) for name, value in options.items()):
            raise wrong
        # A default that is written means what it means where it is left out.
        options = {name: value for name, value in options.items() if value != declared.options[name].default}
        return AggregateSpec(function=function, columns=(argument["column"],), options=options, where=where)
    columns = [argument] if isinstance(argument, str) else argument
    if not isinstance(columns, list | tuple) or len(columns) != len(declared.columns) or not all(map(_is_column, columns)):
        raise wrong
    return AggregateSpec(function=function, columns=tuple(columns), where=where)


def _is_column(value: object) -> bool:
    return isinstance(value, str) and value not in ("", "*")


def dump_aggregate(spec: AggregateSpec) -> dict[str, Any]:
    """The written form again; ``parse_aggregate`` of it gives ``spec``."""
    written: dict[str, Any]
    if spec.expr:
        written = {"expr": spec.expr}
    elif spec.use:
        written = {"use": spec.use, "args": list(spec.columns)}
    elif spec.options:
        written = {spec.function: {"column": spec.columns[0], **spec.options}}
    else:
        columns = list(spec.columns)
        written = {spec.function: columns if len(columns) > 1 else columns[0] if columns else "*"}
    return written | ({"where": spec.where} if spec.where else {})


def _json_schema() -> dict[str, Any]:
    column: dict[str, Any] = {"type": "string", "minLength": 1}

    def argument(declared: Declaration) -> dict[str, Any]:
        if declared.options:
            fields = {"column": column} | {name: dict(option.schema) for name, option in declared.options.items()}
            required = ["column", *(name for name, option in declared.options.items() if option.default is None)]
            return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
        number = len(declared.columns)
        listed = {"type": "array", "items": column, "minItems": number, "maxItems": number}
        return listed if number > 1 else {"anyOf": [column, listed]}

    known = {name: argument(declared) for name, declared in DECLARED.items()}
    own = {"use": {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"}, "args": {"type": "array", "items": column}, "expr": column}
    return {
        "type": "object",
        "properties": known | own | {"where": {"type": "string", "minLength": 1}},
        "additionalProperties": False,
        "oneOf": [{"required": [name]} for name in (*known, "use", "expr")],
    }


class _WithOurSchema:
    """Gives pydantic the JSON schema when it is asked for: plugins may have added aggregates by then."""

    def __get_pydantic_json_schema__(self, _core: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return _json_schema()


Aggregates = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")],
        Annotated[AggregateSpec, BeforeValidator(parse_aggregate), PlainSerializer(dump_aggregate, return_type=dict), _WithOurSchema()],
    ],
    Field(min_length=1),
]
