"""Search for the shortest schedule, exact or not, and bounds on it."""
