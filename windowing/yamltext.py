"""The YAML that a spec may use: plain mappings, lists and scalars, and nothing that could blow a small file up."""

from __future__ import annotations

from typing import Any

import yaml

#: Fields within fields; a spec has six levels.
MAX_DEPTH = 32
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "timestamp", "merge", "value")}


class SpecLoader(yaml.SafeLoader):
    """Safe YAML without aliases, tags, deep nesting, names that are no text, and names given twice.

    Names are text as they are written: an aggregate may be called ``on`` or ``null``.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs of PyYAML leave it untyped
        mark: Any = event.start_mark
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not read; write the value out", mark)
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"fields lie within one another more than {MAX_DEPTH} deep; write it flat", mark)
        self._depth += 1
        try:
            node = super().compose_node(parent, index)
        finally:
            self._depth -= 1
        if node is not None and node.tag not in _TAGS:
            raise yaml.composer.ComposerError(None, None, f"the tag {node.tag!r} is not read; write a plain value", node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "a list or mapping stands where a field's name should", key.start_mark)
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"the field {key.value[:80]!r} is given twice", key.start_mark)
            seen.add(key.value)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ARG002 - a spec is a tree, so all of it is made at once
        return {key.value: self.construct_object(item, deep=True) for key, item in node.value}

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError, TypeError, IndexError, OverflowError) as err:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"got {str(node.value)[:80]!r}, which is no {kind}; put text into quotes", node.start_mark
            ) from err
