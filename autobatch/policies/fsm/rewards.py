"""The rewards that learning adds up, per batch of type a.

    published   -1 + |F_a| / |frontier(G_a)|, zero for a choice that cannot be regretted (`schedule.restricted`)
    critical    0 if a is critical, else -1: the sum is the chain bound less the batches (`schedule.chains`)

Source: the first is ED-Batch's (arXiv:2302.03851).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from autobatch.jit.loops import compiled

Reward: TypeAlias = Literal["published", "critical"]
REWARDS: tuple[Reward, ...] = get_args(Reward)
PUBLISHED, CRITICAL = range(2)


@compiled
def reward_of(reward: int, n_ready: int, frontier: int, critical: int) -> float:
    """Give the reward of a batch.

    Args:
        reward: a number of `REWARDS`.
        n_ready, frontier: the type's ready nodes, and those at the frontier of its restricted dag; only the reward
            "published" reads them.
        critical: whether the type is critical; only the reward "critical" reads it.
    """
    return float(n_ready / frontier - 1) if reward == PUBLISHED else float(critical - 1)
