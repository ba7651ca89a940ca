"""The cuda backend: runs plans on an NVIDIA GPU, through CuPy; or, for tests, the same kernels built for the host."""
