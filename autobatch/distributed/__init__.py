"""Data-parallel training: each process computes its share of every mini-batch, and gradients are summed over all."""

from autobatch.distributed.group import Joined, group
from autobatch.distributed.shares import Share, shares, spread

__all__ = ["Joined", "Share", "group", "shares", "spread"]
