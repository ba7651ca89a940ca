"""Gradients of parameters by instance: the weight stage with a segment of rows for each instance.

reads     the types and stacks that read a parameter, and the memory that its gradients take on their way
weights   the weight stages of a run by instance: gradients (n, *shape), and norms of gradients
readers   what a run is given to read its rows, and to scale them
"""
