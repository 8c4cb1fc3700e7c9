"""Figures of the product's shape, from its text: each measure lists what it counts, with the place of each."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

#: Words of no use to a reader who knows the field, or for which the field has another word.
PRIVATE_WORDS = re.compile(
    r"\b(told|tells?|stands|standing|lasting|anew|alike|vouch\w*|lands?|landed|settled?|beside|spared|untaken"
    r"|looks? at|goes by|go by|way|ways)\b"
)
PYSPARK = re.compile(r"^\s*(from|import) pyspark", re.MULTILINE)
ROOT = Path(__file__).parents[2]
PACKAGES = ("windowing", "checkpoints", "expectations", "jobs", "dags")
#: A module under so many lines is part of another's story, if only that one imports it.
SMALL_MODULE = 80

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Product:
    """Modules of the product by their paths below ``windowmill``, and what is to be counted in them.

    ``texts`` has the text of each module; the name of a package's own module ends with ``__init__.py``.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        assert texts, "no module to measure: have the folders moved?"
        self.texts = texts
        self.trees = {name: ast.parse(text) for name, text in texts.items()}
        self.lines = {name: len(text.splitlines()) for name, text in texts.items()}
        self._paths = {dotted(name): name for name in texts}

    @classmethod
    @cache
    def here(cls) -> Product:
        """The product in this checkout."""
        texts = {path.name: path.read_text() for path in sorted((ROOT / "src/windowmill").glob("*.py"))}
        for package in PACKAGES:
            found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / package).rglob("*.py"))}
            assert found, f"no files under {package}/: has the folder moved?"
            texts |= found
        return cls(texts)

    def functions(self) -> Iterator[tuple[str, Function]]:
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, Function):
                    yield f"{name}::{node.name}", node

    def imported(self, name: str, *, types: bool = True) -> set[str]:
        """Modules that a module imports anywhere, for types alone too unless said otherwise; ``from a import b`` may be the module a.b."""
        found: set[str] = set()
        for node in ast.walk(self.trees[name]) if types else _that_run(self.trees[name]):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {member if member in self._paths else node.module for member in members}
        return found

    def imports(self, *, types: bool = True) -> dict[str, set[str]]:
        """Modules of the product that each module imports."""
        return {name: {self._paths[each] for each in self.imported(name, types=types) & set(self._paths)} - {name} for name in self.texts}

    def small_modules_with_one_importer(self) -> list[str]:
        importers = defaultdict(list)
        for name, others in self.imports().items():
            for other in others:
                importers[other].append(name)
        return [
            f"{name}, {lines} lines, imported by {importers[name][0]}"
            for name, lines in self.lines.items()
            if lines < SMALL_MODULE and len(importers[name]) == 1 and not name.endswith("__init__.py")
        ]

    def largest_import_circle(self) -> list[str]:
        """Modules of the largest set in which each imports each other, directly or by others."""
        imports = self.imports()
        reached = {name: reached_from([name], imports) for name in imports}
        circles = [sorted(other for other in others if name in reached[other]) for name, others in reached.items()]
        return max(circles, key=len)

    def imports_inside_functions(self) -> list[str]:
        inner = ((name.partition("::")[0], node) for name, function in self.functions() for node in ast.walk(function))
        found = ((name, node) for name, node in inner if isinstance(node, ast.Import | ast.ImportFrom))
        return list(dict.fromkeys(f"{name}:{node.lineno} {ast.unparse(node)}" for name, node in found))

    def checks_of_plans(self) -> list[str]:
        """Where code looks for the kind of a plan, in place of asking the plan."""
        return [
            f"{name}:{node.lineno} {ast.unparse(node)}"
            for name, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and re.match(r"isinstance\(([\w.\[\]]*\.)?plan,", ast.unparse(node))
        ]

    def class_names_used_twice(self) -> list[str]:
        places = defaultdict(list)
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(name)
        return _repeated(places)

    def module_names_used_twice(self) -> list[str]:
        places = defaultdict(list)
        for name in self.texts:
            if not name.endswith("__init__.py"):
                places[Path(name).stem].append(name)
        return _repeated(places)

    def naming(self, pattern: str) -> list[str]:
        """Modules whose text has a match of the pattern."""
        return [name for name, text in self.texts.items() if re.search(pattern, text, re.MULTILINE)]

    def private_words(self) -> list[str]:
        lines = ((name, number, line) for name, text in self.texts.items() for number, line in enumerate(text.splitlines(), 1))
        return [f"{name}:{number} {word[0]}" for name, number, line in lines for word in PRIVATE_WORDS.finditer(line)]


def dotted(name: str) -> str:
    return "windowmill." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _that_run(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below ``node`` that run, and not only for types."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _that_run(child)


def _repeated(places: Mapping[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def reached_from(start: list[str], imports: Mapping[str, set[str]]) -> set[str]:
    """Modules that those imported at the ``start`` import, at any depth."""
    found: set[str] = set()
    ahead = list(start)
    while ahead:
        new = imports[ahead.pop()] - found
        found |= new
        ahead += new
    return found
