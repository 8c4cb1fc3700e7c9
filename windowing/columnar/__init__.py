"""What a task does with the rows of some keys, as columns: lifts them, applies them to stored rows, and makes results and new state.

``slices`` and ``grid_windows`` serve windows on grids, ``sessions`` sessions, ``position_*`` windows with policies, and
``keyed`` windows over live rows. The loops are in :mod:`windowmill.windowing.kernels`.
"""
