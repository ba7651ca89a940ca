"""The reference backend: runs programs with NumPy, one instruction after the other; the oracle of the others."""
