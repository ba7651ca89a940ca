"""Passes over the program of a cell: simplification and differentiation."""
