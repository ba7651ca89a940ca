"""The rewards that learning adds up, per batch of type a.

    published   -1 + |F_a| / |frontier(G_a)|, zero for a choice that cannot be regretted (`schedule.restricted`)
    critical    0 if a is critical, else -1: the sum is the chain bound less the batches (`schedule.chains`)
    time        minus the predicted time of the batch, in units of the mean, over types, of a batch of one row

Source: the first is ED-Batch's (arXiv:2302.03851).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

from autobatch.jit.arrays import FloatArray
from autobatch.jit.loops import compiled
from autobatch.policies.cost import EFFICIENT, LAUNCH, ROW, batch_cost

Reward: TypeAlias = Literal["published", "critical", "time"]
REWARDS: tuple[Reward, ...] = get_args(Reward)
PUBLISHED, CRITICAL, TIME = range(3)


@compiled
def reward_of(reward: int, prices: FloatArray, kind: int, n_ready: int, frontier: int, critical: int) -> float:
    """Give the reward of a batch.

    Args:
        reward: a number of `REWARDS`.
        prices: float64[3, T] of a `CostModel`; only the reward "time" reads them.
        kind, n_ready: the type, and its ready nodes.
        frontier: of the type, in its restricted dag; only the reward "published" reads it.
        critical: whether the type is critical; only the reward "critical" reads it.
    """
    if reward == PUBLISHED:
        return float(n_ready / frontier - 1)
    if reward == CRITICAL:
        return float(critical - 1)
    unit = np.mean(prices[LAUNCH] + prices[ROW] * np.maximum(1.0, prices[EFFICIENT]))
    return float(-batch_cost(prices, kind, n_ready) / unit)
