"""A check of a GPU: what it computes, and what launches and products cost; `experiments/gpu_check.py` has more."""
