"""Run plans on an NVIDIA GPU through CuPy: the cuda backend. For tests, the same kernels are built for the host."""
