"""The types of windows, one module each: its fields, how it is computed, and what other code asks of it.

Light on purpose, as :mod:`windowmill.windowing.spec` is: what needs numpy or numba is imported by the methods that need it.
A new type is a module like these, and a line below.
"""

# Importing a module registers its type; messages and the JSON schema list the types in this order.
# ruff: noqa: F401
# isort: off
from windowmill.windowing.windows import tumbling
from windowmill.windowing.windows import hopping
from windowmill.windowing.windows import cumulative
from windowmill.windowing.windows import session
from windowmill.windowing.windows import snapshot
from windowmill.windowing.windows import count
from windowmill.windowing.windows import custom
from windowmill.windowing.windows import sliding
