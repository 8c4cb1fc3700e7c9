"""The types of windows: their fields, how they are computed, and what other code asks of them.

Light on purpose, as :mod:`windowmill.windowing.spec` is: what needs numpy or numba is imported by the methods that need it.
A new type is a class like these, in the module of its kind or a new one with a line below.
"""

# Importing a module registers its types; messages and the JSON schema list the types in this order.
# ruff: noqa: F401
# isort: off
from windowmill.windowing.windows import grids
from windowmill.windowing.windows import events
