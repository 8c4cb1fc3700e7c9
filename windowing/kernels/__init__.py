"""The engines over many keys at once: partials laid out in arrays, offsets per key, loops compiled by numba.

A partial is one row of two arenas, ``ints`` (int64) and ``floats`` (float64). What the columns mean, and how two rows combine, is a
:class:`~windowmill.windowing.kernels.layout.Layout`, written down as a *program*: one line (operation, first int column, first float column) an atom.
"""
