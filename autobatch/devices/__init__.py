"""Devices: the memory of the CPU or a GPU, and the kernels, matrix products and copies of a GPU."""
