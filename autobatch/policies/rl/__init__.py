"""Batching as a Gymnasium environment, and trained agents as policies."""
