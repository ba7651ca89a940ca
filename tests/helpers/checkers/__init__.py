"""What results are compared with: definitions, brute force, another precision, the reference backend."""
