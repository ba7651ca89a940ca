"""Counts of calls, lines and arrays, so that tests of costs do not depend on the clock."""
