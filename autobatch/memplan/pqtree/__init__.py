"""PQ-trees: all orders in which given subsets are consecutive (Booth and Lueker 1976)."""
