"""The engines over many keys at once: partials laid out in arrays, offsets per key, loops compiled by numba.

A partial is one row of two arenas, ``ints`` (int64) and ``floats`` (float64). What the columns mean, and how two rows combine, is a
:class:`~windowmill.windowing.kernels.layout.Layout`, written down as a *program*: one line (operation, first int column, first float
column) an atom.

Which rows belong to a window is found by ``grid_ranges`` and ``grid_revisions`` (over ``grid_arithmetic``), ``sessions``, ``snapshots``,
``counts``, ``policies`` and ``late_tuples``. Their partials are combined by ``two_stacks`` (ranges of rows), ``flatfat`` (over ``rings``,
where rows leave in any order) and ``sliced`` (stored slices); ``clipped`` weighs rows anew in each window.
"""
