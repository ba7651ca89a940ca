"""Schedules as sequences of types: common supersequences, compaction, levels."""
