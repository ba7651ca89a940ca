"""Several processes that train together: each computes its share of every mini-batch, and all add up the gradients."""

from autobatch.distributed.group import Joined, group
from autobatch.distributed.shares import Share, shares, spread

__all__ = ["Joined", "Share", "group", "shares", "spread"]
