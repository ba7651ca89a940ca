"""Reports on the decisions of the memory planner."""
