"""Schedules (which nodes run together, and in which order), their checker, a lower bound, and the simulator."""

from __future__ import annotations

from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import FrontierPolicy, Policy, Schedule, chain_lengths, min_batches, min_cost
from autobatch.schedule.schedule_check import check_schedule

__all__ = [
    "FrontierPolicy", "Policy", "Schedule", "chain_lengths", "check_schedule", "make_schedule", "min_batches",
    "min_cost",
]  # fmt: skip
