"""A bug that is put into the code to see whether a test notices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug.

    Attributes
    ----------
    path, find, replace
        In the file at ``path``, where ``find`` has to occur once, it is replaced.
    tests
        Any of these, as pytest names them, has to fail.
    spark
        Whether they need Spark; such mutants are tried only when asked for.
    """

    name: str
    path: str
    find: str
    replace: str
    tests: tuple[str, ...]
    spark: bool = False

    def applied(self, text: str) -> str:
        """``text``, the content of the file, with the bug; raises ``ValueError`` if it cannot be put there."""
        times = text.count(self.find)
        if times != 1 or self.find == self.replace:
            raise ValueError(f"mutant {self.name}: {self.find!r} occurs {times} times in {self.path}; bring the mutant up to date")
        return text.replace(self.find, self.replace)
