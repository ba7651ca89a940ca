"""Compiled loops: Python over flat arrays that Numba compiles at the first call, kept on disk; addresses of arrays."""
