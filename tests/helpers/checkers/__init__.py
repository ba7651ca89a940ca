"""References for results: definitions, brute force, higher precision, the reference backend."""
