"""A check of a GPU: correctness, and the cost of launches and products; `experiments/gpu_check.py` measures more."""
