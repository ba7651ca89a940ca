"""Policies that are state machines: states, Q-learning, learning in use, pictures."""
