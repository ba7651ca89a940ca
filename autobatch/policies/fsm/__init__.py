"""State machine policies: states, Q-learning, online learning, and drawings."""
