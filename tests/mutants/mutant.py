"""A bug that is put into the code to see whether a test notices."""

from __future__ import annotations

import ast
import builtins

from tests.mutants.edits import Edit, edited


class Mutant:
    """A bug.

    Parameters
    ----------
    function
        Module and function, or class, that the edit is made in: ``checkpoints.ledger:Ledger.record``, ``windowing.spec:`` for a whole
        module.
    tests
        Any of these, as pytest names them, has to fail.

    Attributes
    ----------
    path
        File of the module.
    spark
        Whether the tests need Spark; such mutants are tried only when asked for.
    """

    def __init__(self, name: str, function: str, edit: Edit, tests: tuple[str, ...]) -> None:
        module, _, self._function = function.partition(":")
        self.name, self.path, self.tests, self._edit = name, f"{module.replace('.', '/')}.py", tests, edit
        self.spark = any(test.startswith(("tests/spark/", "tests/faults/")) for test in tests)

    def applied(self, text: str) -> str:
        """``text``, the content of the file, with the bug; raises ``ValueError`` if it cannot be put there."""
        try:
            changed = edited(text, self._function, self._edit)
        except ValueError as err:
            raise ValueError(f"mutant {self.name}: {self.path}: {err}; bring the mutant up to date") from err
        if unknown := _unknown_names(ast.parse(changed)):
            raise ValueError(f"mutant {self.name}: {self.path} has no {', '.join(sorted(unknown))}; bring the mutant up to date")
        return changed


def _unknown_names(module: ast.Module) -> set[str]:
    """Names that the code reads and that nothing in it defines: those of an edit that a variable was renamed under."""
    read, defined = set(), {*dir(builtins), "__file__"}
    for node in ast.walk(module):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
            defined.add(node.name or "")
    return read - defined
