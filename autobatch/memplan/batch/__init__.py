"""Placement of a mini-batch: where the rows of each batch begin, and how long they live."""
