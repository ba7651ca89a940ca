"""Counts of calls, lines and arrays: costs are asserted by counts, not by the clock."""
