"""Glucose sensors: time-weighted means of a day, and episodes of high glucose."""
