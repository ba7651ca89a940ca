"""Batching as a Gymnasium environment, and generated families of graphs for training."""
