"""Run compiled stages over tiles of rows, in one or several threads: the cpu backend."""
