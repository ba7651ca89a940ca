"""Commands for batching policies."""
