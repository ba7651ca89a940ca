"""Random PyTorch modules, batched and compared with PyTorch itself."""
