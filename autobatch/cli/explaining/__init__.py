"""Commands that explain batching and compilation."""
