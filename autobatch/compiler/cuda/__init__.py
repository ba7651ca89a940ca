"""Print kernels as CUDA C++."""
