"""The types of windows: their fields, how they are computed, and what other code asks of them.

Light on purpose, as :mod:`windowmill.windowing.spec` is: what needs numpy or numba is imported by the methods that need it.
A new type is a class in ``types``, or in a new module with a line below.
"""

# Importing the module registers the types; messages and the JSON schema list them in its order.
from windowmill.windowing.windows import types  # noqa: F401
