"""Assigns leaves to windows: one module per kind of window, each returning ranges of a sequence of leaves.

A leaf is a row. Leaves are sorted by key, time, tie-break and arrival. Nearly every window is a contiguous range of them, and both bounds
of the range ascend from window to window of a key, so one kernel (:mod:`windowmill.windowing.kernels.two_stacks`) serves all. Leaves
outside a range (late rows, intervals that begin before the window) are listed one by one.
"""
