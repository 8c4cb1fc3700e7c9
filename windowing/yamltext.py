"""The YAML that a spec may use: plain mappings, lists and scalars, and nothing that could blow a small file up."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import yaml

#: Fields within fields; a spec has six levels.
MAX_DEPTH = 32
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "merge", "value")}

#: A variable of the environment in a text; its group is the name.
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: A variable while YAML is read. Private characters replace its braces, which in ``{path: ${NAME}}`` would be those of a mapping.
_SHIELDED = re.compile("\\$\ue000([A-Za-z0-9_]+)\ue001")

#: Characters that libyaml treats otherwise than PyYAML's own parser does (found by comparing the two on mutated specs).
#: A percentage such as ``1 %`` is read the same by both.
_READ_OTHERWISE = re.compile("[\t\r?!\x85\u2028\u2029\ufeff]|(?<![0-9])(?<![0-9] )%|[|>][-+0-9]*#")


def parse_yaml(text: str) -> tuple[Any, Any]:
    """The value of a YAML text, and its node, which has the line of each field; both ``None`` for an empty text.

    Raises
    ------
    yaml.YAMLError
        If the text is not valid, or uses what a spec may not.
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
