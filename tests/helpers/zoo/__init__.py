"""Models of all kinds, written from the README alone, each with the same model in PyTorch."""
