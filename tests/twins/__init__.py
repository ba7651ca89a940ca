"""The models again in PyTorch, written independently, to compare with."""
