"""Run PyTorch's own table of ops, each op in a cell, and compare with PyTorch."""
