"""Models of all kinds, written from the README alone, each beside the same model in PyTorch."""
