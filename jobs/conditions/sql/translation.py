"""One condition, translated node by node: which rule each kind of node follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.conditions.sql import casts, choices, leaves, logic, numbers, parts, texts
from windowmill.jobs.conditions.sql.terms import Dialect, NotCommon, Term, truth

#: What the parts of a node may be called; one that says more is not known here.
_ARGUMENTS = {
    *("this", "expression", "expressions", "to", "ifs", "default", "true", "false", "low", "high"),
    *("start", "length", "position", "is_string", "table"),
}
#: What else the parts of some nodes may be called.
_MORE_ARGUMENTS: Mapping[type[exp.Expr], frozenset[str]] = {exp.Like: frozenset({"negate"}), exp.TryCast: frozenset({"safe"})}
#: Characters of SQL; terms that can fail stand in it more than once.
_LONGEST = 100_000


@dataclass
class Translation:
    """One condition over columns of given types, in one dialect.

    Attributes
    ----------
    plain_texts
        Texts that must hold nothing but printable ASCII for the condition to be the same in both dialects.
    """

    dialect: Dialect
    types: Mapping[str, pa.DataType]
    plain_texts: list[str] = field(default_factory=list)

    def condition(self, tree: exp.Expr) -> Term:
        """The condition's truth; raises ``NotCommon``, and ``ValueError`` for a literal that can never be read as what it stands for."""
        term = truth(self.term(tree))
        if len(term.value) + len(term.failed or "") > _LONGEST:
            raise NotCommon("a condition of such length")
        return term

    def term(self, node: exp.Expr) -> Term:
        """A part of the condition; raises as :meth:`condition`."""
        rule = _RULES.get(type(node))
        more = {name for name, value in node.args.items() if value not in (None, False, [])} - _ARGUMENTS
        if rule is None or more - _MORE_ARGUMENTS.get(type(node), frozenset()):
            raise NotCommon(f"{node.sql('spark')!r}")
        return rule(self, node)


Rule = Callable[[Translation, Any], Term]
_RULES: Mapping[type, Rule] = {
    **leaves.RULES,
    **logic.RULES,
    **casts.RULES,
    **numbers.RULES,
    **texts.RULES,
    **choices.RULES,
    **parts.RULES,
}
