"""Which leaves belong to which window: one file per way of cutting, each giving ranges of a sequence of leaves.

A leaf is a row; leaves stand in the order of key, time, tie-break and arrival. Nearly every window is a contiguous range of them, and from
window to window of a key both bounds of the range ascend, so that one kernel serves all
(:mod:`windowmill.windowing.kernels.two_stacks`). What does not fit a range (late rows, intervals that begin before the window, tuples left
after some between them were evicted) is listed leaf by leaf.
"""
