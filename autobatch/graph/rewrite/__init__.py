"""Passes over merged graphs: dead nodes go, sums are folded into their readers, equal nodes are shared."""
