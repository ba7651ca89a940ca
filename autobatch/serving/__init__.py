"""Serving: requests of any shape join a running mini-batch."""
