"""Readers and generators of instances for the models."""
