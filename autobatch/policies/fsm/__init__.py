"""State machine policies: states, Q-learning, learning in use, and drawings."""
