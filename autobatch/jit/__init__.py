"""Machine code of kernels: compiled by Numba, in a helper process, kept on disk; and what tells of it."""
