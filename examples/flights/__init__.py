"""Departure delays of New York's three airports in 2013, one scheduled day at a time."""
