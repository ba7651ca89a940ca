"""Placement: where every value of a schedule lives."""
