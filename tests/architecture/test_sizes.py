"""The product's shape: how long modules and functions are, how they hang together, and what their words are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.architecture.measures import PYSPARK, Product

LONGEST_MODULE, LONGEST_FUNCTION, MAX_PARAMETERS = 800, 80, 15

#: Each measure's ceiling, which is its figure as last lowered, and the goal. A change that lowers the figure lowers the ceiling too.
CEILINGS: Mapping[str, tuple[Callable[[Product], list[str]], int, int]] = {
    # measure: (what it counts, ceiling, goal)
    "modules": (lambda product: sorted(product.lines), 240, 240),
    "modules under 80 lines with one importer": (Product.small_modules_with_one_importer, 3, 15),
    "modules in the largest import circle": (Product.largest_import_circle, 3, 5),
    "imports inside functions": (Product.imports_inside_functions, 117, 120),
    "class names used twice": (Product.class_names_used_twice, 2, 3),
    "module names used twice": (Product.module_names_used_twice, 5, 12),
    "isinstance checks of plans": (Product.checks_of_plans, 2, 10),
    "modules that name the column LEVEL": (lambda product: product.naming(r"\bLEVEL\b"), 6, 8),
    "modules that import pyspark": (lambda product: product.naming(PYSPARK.pattern), 17, 20),
    "private words": (Product.private_words, 44, 250),
}


def test_modules_are_not_too_long():
    assert {name: lines for name, lines in Product.here().lines.items() if lines > LONGEST_MODULE} == {}


def test_functions_are_short_and_take_few_parameters():
    long, many = {}, {}
    for name, function in Product.here().functions():
        assert function.end_lineno is not None
        long[name] = function.end_lineno - function.lineno + 1
        many[name] = len([*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs])
    assert {name: count for name, count in long.items() if count > LONGEST_FUNCTION} == {}
    assert {name: count for name, count in many.items() if count > MAX_PARAMETERS} == {}


@pytest.mark.parametrize("measure", CEILINGS)
def test_no_measure_passes_its_ceiling(measure):
    count, ceiling, goal = CEILINGS[measure]
    found = count(Product.here())
    assert len(found) <= ceiling, f"{len(found)} {measure}, more than {ceiling} (the goal is {goal}):\n" + "\n".join(found)


def test_measures_count_what_they_name():
    made = Product(
        {
            "jobs/a.py": "from windowmill.jobs.b import B\n",
            "jobs/b.py": "from pyspark import sql\nimport windowmill.jobs.c\nclass B:\n    def x(self):\n        import json\n",
            "jobs/c.py": "from windowmill.jobs import b\n\ndef f():\n    def g():\n        import json\n",
            "dags/c.py": '"""What we are told of LEVEL."""\nclass B: ...\nisinstance(B.plan, B)\n',
        }
    )
    assert made.small_modules_with_one_importer() == ["jobs/c.py, 5 lines, imported by jobs/b.py"]
    assert made.largest_import_circle() == ["jobs/b.py", "jobs/c.py"]
    assert made.imports_inside_functions() == ["jobs/b.py:5 import json", "jobs/c.py:5 import json"]
    assert made.class_names_used_twice() == ["B: jobs/b.py, dags/c.py"]
    assert made.module_names_used_twice() == ["c: jobs/c.py, dags/c.py"]
    assert made.checks_of_plans() == ["dags/c.py:3 isinstance(B.plan, B)"]
    assert (made.naming(r"\bLEVEL\b"), made.naming(PYSPARK.pattern)) == (["dags/c.py"], ["jobs/b.py"])
    assert made.private_words() == ["dags/c.py:1 told"]
