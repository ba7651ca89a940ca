"""Training: optimizers that change parameters in place, clipping, and schedules of the learning rate.

optimizer = ab.optim.AdamW(model, lr=1e-3, groups=[ab.optim.Group("*bias", weight_decay=0.0)])
rate = ab.optim.CosineRate(optimizer, n_steps=1000, warmup=100)
for batch in batches:
    value, grads = loss.value_and_grad(batch)
    ab.optim.clip_by_norm(grads, 5.0)
    optimizer.step(grads)
    rate.step()
"""

from typing import TYPE_CHECKING

from autobatch.missing import suggesting
from autobatch.optim.adam import Adam, AdamW
from autobatch.optim.base import Group, Optimizer, OptimizerState
from autobatch.optim.clip import clip_by_norm, clip_by_value
from autobatch.optim.schedules import ConstantRate, CosineRate, LearningRate, PlateauRate, RateState, StepRate
from autobatch.optim.sgd import SGD
from autobatch.params.sparse_rows import Gradient

__all__ = [
    "SGD", "Adam", "AdamW", "ConstantRate", "CosineRate", "Gradient", "Group", "LearningRate", "Optimizer",
    "OptimizerState", "PlateauRate", "RateState", "StepRate", "clip_by_norm", "clip_by_value",
]  # fmt: skip

if not TYPE_CHECKING:  # or mypy would accept any name
    __getattr__ = suggesting(__name__, __all__)
