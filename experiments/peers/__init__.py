"""The models again in PyTorch: one instance at a time, batched as a good user would, and as an expert would."""
