"""The reference backend: runs programs with NumPy, one instruction after the other, to check the other backends."""
