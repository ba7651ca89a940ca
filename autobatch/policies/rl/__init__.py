"""Batching as a Gymnasium environment, and generated families of graphs to learn on."""
