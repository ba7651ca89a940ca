"""Commands about batching policies."""
