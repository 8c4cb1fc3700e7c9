"""All mutants, a module for each part of the product."""

from tests.mutants import batches, chains, days_after, ledgers, meanings, plans, protocol, sources, states
from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(*mutant, tests if isinstance(tests, tuple) else (tests,))
    for part in (protocol, plans, ledgers, batches, sources, chains, states, meanings, days_after)
    for tests, mutants in part.MUTANTS.items()
    for mutant in mutants
]
