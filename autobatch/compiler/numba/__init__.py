"""Prints loops as source for Numba, and loads what it makes of it."""
