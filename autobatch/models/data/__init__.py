"""Readers and generators: instances for the models."""
