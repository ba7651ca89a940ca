"""Layers, and mini-batches of instances."""
