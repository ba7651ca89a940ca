"""PyTorch's own table of ops, each op in a cell beside PyTorch."""
