"""Matrix products of our own: packed operands and register tiles."""
