"""Print kernels as source for Numba, and load the compiled functions."""
