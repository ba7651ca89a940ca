"""The sections of `gpu_check.py`: what is checked and measured on a GPU."""
