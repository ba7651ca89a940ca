"""The cpu backend: compiled stages over tiles of rows, in one or several threads."""
