"""The parts of a pipeline, one for each state layout: slices, sessions, positions and live rows.

A part (:mod:`.base`) says what it reads of new rows, which rows of the state it wants, and how it advances them. It knows no class of
Spark; schedulers (:mod:`windowmill.jobs.schedulers`) bring rows and state together. The other modules are what parts and schedulers share:
input, lateness, limits and output, quarantined rows among it.
"""
