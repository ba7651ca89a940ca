"""Counts of calls, lines, arrays and traces: costs are asserted by counts, not by the clock."""
