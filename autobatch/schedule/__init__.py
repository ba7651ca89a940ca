"""Schedules: which nodes run together, in which order; their checker, the lower bound, and the simulator for policies."""
