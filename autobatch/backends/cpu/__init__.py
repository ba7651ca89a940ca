"""The cpu backend: runs compiled stages over tiles of rows, in one or several threads."""
