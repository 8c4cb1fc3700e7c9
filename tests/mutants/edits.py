"""Edits of a function's syntax tree, each made at the one place that a pattern matches.

A pattern is Python. ``_`` stands for any expression, ``_1`` to ``_9`` for expressions that the replacement repeats, and ``...`` for any
further arguments or statements, ``f"..."`` for any f-string. Layout, comments and variables that a pattern leaves open do not matter.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

#: Line and column, in bytes.
Position = tuple[int, int]
#: Begin and end of the text to be replaced, and what replaces it.
Place = tuple[Position, Position, str]
#: Lists the places in a scope at which the edit may be made.
Edit = Callable[[ast.AST], Iterator[Place]]
_HOLE = re.compile(r"_[1-9]?")
#: Operators that have a result of the same kind without their left operand.
_EITHER = (ast.Add, ast.BitAnd, ast.BitOr)
#: Fields that patterns do not compare: whether a name is read or set, and the cause of what is raised.
_IGNORED = ("ctx", "cause")


def instead(pattern: str, by: str) -> Edit:
    """``by`` in the place of an expression or of a statement."""
    wanted = _parsed(pattern)

    def places(scope: ast.AST) -> Iterator[Place]:
        for node in _nodes(scope):
            holes: dict[str, ast.AST] = {}
            if _matches(wanted, node, holes):
                yield _replacing(node, _Filled(holes).visit(_parsed(by)))

    return places


def never(condition: str) -> Edit:
    return instead(condition, "False")


def always(condition: str) -> Edit:
    return instead(condition, "True")


def without(part: str) -> Edit:
    """Leave out a statement, an operand, an argument (a named one as ``name=_``) or an entry of a dictionary (as ``"key": _``)."""
    wanted = _parsed(part)

    def places(scope: ast.AST) -> Iterator[Place]:
        for node in _nodes(scope):
            yield from (_replacing(node, rest) for gone, rest in _parts(node) if _matches(wanted, gone, {}))

    return places


def before(statement: str, inserted: str) -> Edit:
    """``inserted`` ahead of a statement."""
    wanted = _parsed(statement)

    def places(scope: ast.AST) -> Iterator[Place]:
        for node in _nodes(scope):
            if isinstance(node, ast.stmt) and _matches(wanted, node.value if isinstance(node, ast.Expr) else node, {}):
                begin = node.lineno, node.col_offset
                yield begin, begin, f"{inserted}\n{' ' * node.col_offset}"

    return places


def edited(text: str, qualname: str, edit: Edit) -> str:
    """``text``, that of a module, with the edit made in the function or class of that name, or anywhere if the name is empty.

    Raises
    ------
    ValueError
        If there is no such function, or not one place alone to edit.
    """
    scope: Any = ast.parse(text)
    for name in qualname.split(".") if qualname else ():
        named = [node for node in scope.body if getattr(node, "name", None) == name]
        if len(named) != 1:
            raise ValueError(f"{len(named)} functions or classes are named {qualname}")
        scope = named[0]
    places = list(edit(scope))
    if len(places) != 1:
        raise ValueError(f"the pattern matches {len(places)} times in {qualname or 'the module'}")
    content = text.encode()
    lines = [0, *(match.end() for match in re.finditer(b"\n", content))]
    *span, new = places[0]
    begin, end = (lines[line - 1] + column for line, column in span)
    return (content[:begin] + new.encode() + content[end:]).decode()


def _parsed(pattern: str) -> ast.AST:
    """An expression, a statement, or an entry as a dictionary of its own."""
    try:
        (node,) = ast.parse(pattern).body
    except SyntaxError:
        return ast.parse(f"{{{pattern}}}", mode="eval").body
    return node.value if isinstance(node, ast.Expr) else node


def _replacing(node: Any, new: ast.AST) -> Place:
    """``new`` in the place of ``node``, in parentheses where it might not bind as tightly."""
    text = ast.unparse(new).replace("\n", "\n" + " " * node.col_offset)
    is_whole = isinstance(new, ast.stmt | ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript)
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text if is_whole else f"({text})"


def _nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes within ``scope``, but for those inside of f-strings: Python 3.11 does not know where they are."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.JoinedStr):
            yield from _nodes(node)


def _parts(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What can be left out of ``node``, each with what remains."""
    if isinstance(node, ast.Expr):
        yield node.value, ast.Pass()
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.Raise | ast.Return):
        yield node, ast.Pass()
    elif isinstance(node, ast.BinOp):
        yield node.right, node.left
        if isinstance(node.op, _EITHER):
            yield node.left, node.right
    elif isinstance(node, ast.BoolOp):
        for number, part in enumerate(node.values):
            rest = node.values[:number] + node.values[number + 1 :]
            yield part, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.Call):
        for number, argument in enumerate(node.args):
            yield argument, ast.Call(node.func, node.args[:number] + node.args[number + 1 :], node.keywords)
        for number, keyword in enumerate(node.keywords):
            yield keyword, ast.Call(node.func, node.args, node.keywords[:number] + node.keywords[number + 1 :])
    elif isinstance(node, ast.Dict):
        for number, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            keys, values = node.keys[:number] + node.keys[number + 1 :], node.values[:number] + node.values[number + 1 :]
            yield ast.Dict([key], [value]), ast.Dict(keys, values)


def _matches(pattern: Any, node: Any, holes: dict[str, ast.AST]) -> bool:
    """Whether ``node`` is what the pattern describes, with what its holes stand for in ``holes``."""
    if isinstance(pattern, ast.Name) and _HOLE.fullmatch(pattern.id):
        bound = node if pattern.id == "_" else holes.setdefault(pattern.id, node)
        return isinstance(node, ast.expr) and ast.unparse(bound) == ast.unparse(node)
    if isinstance(pattern, ast.Assign) and isinstance(node, ast.keyword):
        return ast.unparse(pattern.targets) == node.arg and _matches(pattern.value, node.value, holes)
    if isinstance(pattern, list):
        if pattern and _is_rest(pattern[-1]):
            return len(pattern) - 1 <= len(node) and all(_matches(*pair, holes) for pair in zip(pattern[:-1], node, strict=False))
        return len(pattern) == len(node) and all(_matches(*pair, holes) for pair in zip(pattern, node, strict=True))
    if not isinstance(pattern, ast.AST):
        return bool(pattern == node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.JoinedStr) and ast.unparse(pattern) == "f'...'":
        return True
    if isinstance(pattern, ast.Constant):
        return type(pattern.value) is type(node.value) and pattern.value == node.value
    if isinstance(pattern, ast.Call) and pattern.args and _is_rest(pattern.args[-1]):
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        asked = [(keyword.value, named.get(keyword.arg)) for keyword in pattern.keywords]
        fits = _matches(pattern.func, node.func, holes) and _matches(pattern.args, node.args, holes)
        return fits and all(_matches(*pair, holes) for pair in asked)
    return all(_matches(getattr(pattern, name), getattr(node, name), holes) for name in pattern._fields if name not in _IGNORED)


def _is_rest(node: Any) -> bool:
    return isinstance(node, ast.Expr | ast.Constant) and getattr(node.value, "value", node.value) is ...


class _Filled(ast.NodeTransformer):
    """Puts what holes stand for in their place."""

    def __init__(self, holes: dict[str, ast.AST]) -> None:
        self._holes = holes

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self._holes.get(node.id, node))
