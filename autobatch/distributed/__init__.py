"""Several processes that train together: each computes its share of every mini-batch, and all add up the gradients."""

from autobatch.distributed.group import Joined, group
from autobatch.distributed.shares import shares, spread
from autobatch.trace.share import Share

__all__ = ["Joined", "Share", "group", "shares", "spread"]
