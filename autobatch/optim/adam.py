"""Adam and AdamW, equal to torch.optim in every step; they differ in the meaning of weight decay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from autobatch.arguments import show
from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.optim.base import COMMON_LIMITS, Group, Optimizer
from autobatch.params.module import Module


class _MomentOptimizer(Optimizer):
    """The common part of Adam and AdamW: a step along the first moment, divided by the root of the second."""

    limits: ClassVar[Mapping[str, float]] = {**COMMON_LIMITS, "beta_1": 1.0, "beta_2": 1.0, "eps": math.inf}

    def __init__(
        self,
        model: Module,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        groups: Sequence[Group],
        lazy: bool,
    ) -> None:
        decay = {"weight_decay": weight_decay, "lazy": lazy}
        if len(betas) != 2:
            raise DataError(f"betas must be two numbers, got {show(betas)}.")
        options = {"lr": lr, "beta_1": betas[0], "beta_2": betas[1], "eps": eps, **decay}
        super().__init__(model, ("mean", "mean_square"), options, groups)

    def _moments(self, step: int, lr: float, weight_decay: float, shrink: float) -> tuple[float, ...]:
        beta_1, beta_2 = self._options["beta_1"], self._options["beta_2"]
        rate, root = lr / (1.0 - beta_1**step), math.sqrt(1.0 - beta_2**step)
        # In the order of `native/run/optimizer.h`.
        return rate, weight_decay, beta_1, beta_2, 1.0 - beta_1, 1.0 - beta_2, root, self._options["eps"], shrink


class Adam(_MomentOptimizer):
    """Adam: steps along the mean gradient, divided by the root of the mean squared gradient.

    Args:
        model: the module to train.
        lr: learning rate, about the largest change of a number in one step.
        betas: decay rates of the mean and of the mean square, at least 0 and below 1.
        eps: added to the root, so that a parameter with zero gradients does not change.
        weight_decay: factor of the parameter in the term added to its gradient; `AdamW` decays the parameter itself.
        groups: parameters with a learning rate or weight decay of their own.
        lazy: whether a gradient given as `Rows` updates only its rows (values and both means), by the dense rule with
            steps counted per parameter; otherwise it updates all rows, as the dense gradient would.

    Raises:
        DataError: an option is out of range, or a group selects no parameter.

    Source: Kingma and Ba 2015 (arXiv:1412.6980), algorithm 1; equal to torch.optim.Adam in every step: both means start
    at zero and are divided by 1 - beta**step, counted per parameter. With `lazy`, torch.optim.SparseAdam, except that
    torch adds eps to the root before the division by sqrt(1 - beta_2**step), and this class after it, as when dense.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> model = ab.Linear(2, 1, rng=np.random.default_rng(0), bias=False)
    >>> model.weight.data = [[1.0, 2.0]]
    >>> optimizer = ab.optim.Adam(model, lr=0.25)
    >>> optimizer.step({"weight": np.array([[3.0, -0.1]], dtype=np.float32)})
    >>> model.weight.data
    array([[0.75, 2.25]], dtype=float32)
    """

    @checked()
    def __init__(
        self,
        model: Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        groups: Sequence[Group] = (),
        lazy: bool = False,
    ) -> None:
        super().__init__(model, lr, betas, eps, weight_decay, groups, lazy)

    def _constants(self, step: int, lr: float, weight_decay: float) -> tuple[float, ...]:
        return self._moments(step, lr, weight_decay, shrink=1.0)


class AdamW(_MomentOptimizer):
    """Adam with decoupled weight decay, which does not depend on the gradients.

    Args:
        model: the module to train.
        lr: learning rate, about the largest change of a number in one step.
        betas: decay rates of the mean and of the mean square, at least 0 and below 1.
        eps: added to the root, so that a parameter with zero gradients changes only by its decay.
        weight_decay: each step first multiplies the parameter by 1 - lr * weight_decay.
        groups: parameters with a learning rate or weight decay of their own; biases often have decay 0.
        lazy: as for `Adam`; only the rows of the gradient decay.

    Raises:
        DataError: an option is out of range, or a group selects no parameter.

    Source: Loshchilov and Hutter 2019 (arXiv:1711.05101), algorithm 2; equal to torch.optim.AdamW in every step.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> model = ab.Linear(2, 1, rng=np.random.default_rng(0), bias=False)
    >>> model.weight.data = [[1.0, 2.0]]
    >>> optimizer = ab.optim.AdamW(model, lr=0.25, weight_decay=1.0)
    >>> optimizer.step({"weight": np.array([[3.0, 0.0]], dtype=np.float32)})
    >>> model.weight.data
    array([[0.5, 1.5]], dtype=float32)
    """

    @checked()
    def __init__(
        self,
        model: Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        groups: Sequence[Group] = (),
        lazy: bool = False,
    ) -> None:
        super().__init__(model, lr, betas, eps, weight_decay, groups, lazy)

    def _constants(self, step: int, lr: float, weight_decay: float) -> tuple[float, ...]:
        return self._moments(step, lr, 0.0, shrink=1.0 - lr * weight_decay)  # no decay in the gradient
