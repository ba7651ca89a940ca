"""Readers of text files, and vocabularies."""
