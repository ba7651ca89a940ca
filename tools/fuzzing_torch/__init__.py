"""Random modules of PyTorch, batched beside PyTorch itself."""
