"""The gradients of parameters by instance, read from the rows that backward leaves for the weight stage.

A run that has gone backward holds, for every node, the operands of its contribution to each parameter's gradient. The
weight stage sums over the rows of all nodes; the modules here sum over those of each instance.

    rows      which rows of a type belong to which instance
    forms     how the weight stage of a type computes a gradient
    sources   the types and stacks in which a parameter is read
    sums      gradients of consecutive instances, (B, *shape)
    norms     norms of them, without the gradients themselves
    readers   what a run is given to read its rows, and to scale them
"""
