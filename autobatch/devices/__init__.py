"""Devices: the memory of the processor or of a GPU, and the kernels, products and copies of a GPU."""
