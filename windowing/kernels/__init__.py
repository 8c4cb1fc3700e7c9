"""The engines over many keys at once: partials laid out in arrays, offsets per key, loops compiled by numba.

A partial is one row of two arenas, ``ints`` (int64) and ``floats`` (float64). A :class:`~windowmill.windowing.kernels.layout.Layout`
defines the columns and how two rows combine. Kernels take it as a *program*: one line (operation, first int column, first float column)
per atom.

The rows of a window are found by ``grid_ranges``, ``event_bounds`` and ``policies``. Their partials are combined by
``two_stacks`` (ranges of rows), ``flatfat`` (where tuples are removed in any order) and ``slices`` (stored slices).
"""
