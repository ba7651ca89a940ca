"""Policies that are rules: heuristics, scores, and how a rule runs from either end."""
