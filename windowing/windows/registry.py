"""The types of windows by the names that specs give them: windowmill's own, and those of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce
from inspect import isabstract
from operator import or_
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from windowmill.windowing.registry import Registry
from windowmill.windowing.windows.base import Window

#: In the order of registration, which messages and the JSON schema follow.
TYPES: Registry[type[Window]] = Registry("window type", {})
_W = TypeVar("_W", bound=Window)


def register(kind: type[_W]) -> type[_W]:
    """Make ``kind`` a type that specs can name; a class decorator.

    Raises
    ------
    TypeError
        If the class leaves a method out, or does not say what specs call it.
    PluginError
        If another class has the name.
    """
    place = f"{kind.__module__}.{kind.__qualname__}"
    if isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise TypeError(f"window type {place}: lacks {missing}; implement them as windowmill.windowing.windows.base.Window says")
    annotation = kind.model_fields["type"].annotation
    if get_origin(annotation) is not Literal:
        raise TypeError(f'window type {place}: type: got {annotation}; expected the name that specs give it, as in Literal["session"]')
    [name] = get_args(annotation)
    if kind.__module__.startswith(f"{__package__}."):
        TYPES.build_in(name, kind)
    else:
        TYPES.register(name, kind, kind.__module__)
    return kind


class ByType:
    """Marks a field of a spec that holds a window of any type.

    Types are looked up when a spec is read, so that one may be registered after the model that holds the field was built. A window of one
    of windowmill's own types imports no plugin.
    """

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: _adapter(_candidates(value)).validate_python(value))

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(_adapter(tuple(TYPES.values())).core_schema)


def _candidates(value: object) -> tuple[type[Window], ...]:
    """The types of which ``value`` may be one."""
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    own = TYPES.built_in()
    return tuple((own if not isinstance(name, str) or name in own else TYPES).values())


@lru_cache(maxsize=2)
def _adapter(types: tuple[type[Window], ...]) -> TypeAdapter[Window]:
    union: Any = reduce(or_, types)
    return TypeAdapter(Annotated[union, Field(discriminator="type")])
