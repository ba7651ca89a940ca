"""Compiled loops: functions over flat arrays that Numba compiles at the first call, cached on disk; array addresses."""
