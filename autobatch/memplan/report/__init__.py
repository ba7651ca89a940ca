"""What the memory planner decided, as text."""
