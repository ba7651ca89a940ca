"""Rule-based policies: heuristics, scores, and planning from either end."""
