"""Translates one condition node by node, with one rule for each type of node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlglot import exp

from windowmill.jobs.conditions.sql import casts, choices, leaves, logic, numbers, parts, texts
from windowmill.jobs.conditions.sql.terms import Dialect, NotCommon, Term, truth

#: Names of a node's arguments that rules handle; a node with another argument is not translated.
_ARGUMENTS = {
    *("this", "expression", "expressions", "to", "ifs", "default", "true", "false", "low", "high"),
    *("start", "length", "position", "is_string", "table"),
}
#: Further arguments that the rules of some nodes handle.
_MORE_ARGUMENTS: Mapping[type[exp.Expr], frozenset[str]] = {exp.Like: frozenset({"negate"}), exp.TryCast: frozenset({"safe"})}
#: Limit on the SQL in characters; a term that can fail occurs in it more than once.
_LONGEST = 100_000


@dataclass
class Translation:
    """One condition over columns of given types, in one dialect.

    Attributes
    ----------
    plain_texts
        SQL of texts on whose value the dialects agree only if it is printable ASCII.
    """

    dialect: Dialect
    types: Mapping[str, pa.DataType]
    plain_texts: list[str] = field(default_factory=list)

    def condition(self, tree: exp.Expr) -> Term:
        """Translate the whole condition.

        Raises ``NotCommon`` outside the common subset, and ``ValueError`` for a literal that has no value of the required type.
        """
        term = truth(self.term(tree))
        if len(term.value) + len(term.failed or "") > _LONGEST:
            raise NotCommon("a condition of such length")
        return term

    def term(self, node: exp.Expr) -> Term:
        """Translate a part of the condition; raises as :meth:`condition`."""
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
