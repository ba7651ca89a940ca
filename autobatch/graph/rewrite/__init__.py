"""Passes over merged graphs: dead-node elimination, folding of sums, common-subexpression elimination for nodes."""
