"""All mutants, a module for each part of the product."""

from __future__ import annotations

from tests.mutants import batches, ledgers, meanings, plans, protocol, sources, states

MUTANTS = (
    *protocol.MUTANTS,
    *plans.MUTANTS,
    *ledgers.MUTANTS,
    *batches.MUTANTS,
    *sources.MUTANTS,
    *states.MUTANTS,
    *meanings.MUTANTS,
)
