"""Stochastic gradient descent, equal to torch.optim in every step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.optim.base import COMMON_LIMITS, Group, Optimizer
from autobatch.params.module import Module


class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum.

    Args:
        model: the module to train.
        lr: learning rate.
        momentum: fraction of the velocity kept at each step; the gradient in it is not scaled by 1 - momentum.
        nesterov: whether to use Nesterov momentum: to step along the gradient plus momentum times the new velocity.
        weight_decay: factor of the parameter in the term added to its gradient.
        groups: parameters with a learning rate or weight decay of their own.
        lazy: whether a gradient given as `Rows` updates only its rows (values and velocities), by the dense rule;
            otherwise it updates all rows, as the dense gradient would. Without momentum and weight decay, both agree.

    Raises:
        DataError: an option is negative or not finite, `nesterov` comes without momentum, or a group selects no
            parameter.

    Source: equal to torch.optim.SGD in every step; Nesterov's form is from Sutskever et al. 2013.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> class Scale(ab.Module):
    ...     def __init__(self):
    ...         self.factor = ab.Parameter([1.0, 2.0])
    >>> model = Scale()
    >>> optimizer = ab.optim.SGD(model, lr=0.5)
    >>> optimizer.step({"factor": np.array([1.0, -1.0], dtype=np.float32)})
    >>> model.factor.data
    array([0.5, 2.5], dtype=float32)
    """

    limits: ClassVar[Mapping[str, float]] = {**COMMON_LIMITS, "momentum": math.inf, "nesterov": math.inf}

    @checked()
    def __init__(
        self,
        model: Module,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        groups: Sequence[Group] = (),
        lazy: bool = False,
    ) -> None:
        if nesterov and momentum == 0.0:
            raise DataError("momentum of SGD must be above 0 with nesterov=True, got 0; give a momentum, such as 0.9.")
        options = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "lazy": lazy}
        super().__init__(model, ("velocity",) if momentum else (), options, groups)

    def _constants(self, step: int, lr: float, weight_decay: float) -> tuple[float, ...]:
        return lr, weight_decay, self._options["momentum"], self._options["nesterov"]
