"""Our own matrix products: packed operands and register tiles."""
