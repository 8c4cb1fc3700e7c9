"""Which tests inject which fault of docs/reliability.md; exit code 1 where a fault has none."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def faults() -> dict[str, str]:
    """What each id stands for."""
    return dict(re.findall(r"^\| ([A-Z]\d+) \| (.+?) \|$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE))


def covered() -> dict[str, list[str]]:
    """The tests that carry each id, as ``file::name``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else "(all)"
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else _module_marks(node)
            for mark in decorators:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.covers"):
                    for argument in mark.args:
                        found[str(ast.literal_eval(argument))].append(f"{path.relative_to(ROOT)}::{name}")
    return found


def _module_marks(node: ast.AST) -> list[ast.expr]:
    if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"):
        return []
    return node.value.elts if isinstance(node.value, ast.List) else [node.value]


def main() -> int:
    """Print the tests of each fault."""
    tests, missing = covered(), []
    for fault, text in faults().items():
        print(f"{fault:<4} {text}")
        for test in tests.get(fault, ()):
            print(f"       {test}")
        if fault not in tests:
            missing.append(fault)
    if missing:
        print(f"no test injects {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
