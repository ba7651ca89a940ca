"""The models in PyTorch: one instance at a time, and batched as a good user and as an expert would."""
