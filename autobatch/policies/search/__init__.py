"""Search for short schedules, exactly or heuristically, and bound their length from below."""
