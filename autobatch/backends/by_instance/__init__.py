"""Compute per-instance gradients of parameters, by a weight stage with one segment of rows per instance.

reads     the types and stacks that read a parameter, and the temporary memory of its gradients
weights   the weight stages of a run per instance: gradients (n, *shape), and norms of gradients
readers   the readers that a run calls to read its rows, or to scale them
"""
