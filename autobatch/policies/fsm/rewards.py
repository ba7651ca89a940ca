"""The reward for a batch of type a, times its cost; learning maximises the sum over the batches of an episode.

    published   -1 + |F_a| / |frontier(G_a)|, zero for a choice without regret (`native/schedule/restricted.h`)
    critical    0 if a is critical, else -1: the sum is the chain bound less the cost (`native/schedule/chains.h`)

Source: the first is ED-Batch's (arXiv:2302.03851).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Reward: TypeAlias = Literal["published", "critical"]
REWARDS: tuple[Reward, ...] = get_args(Reward)
PUBLISHED, CRITICAL = range(2)  # as in `native/policies/learning.h`
