"""Learning-rate schedules: plain objects that set `optimizer.lr`.

Making one sets the rate of the first step; `step()` after each `optimizer.step` sets that of the next. Whether a step
is a mini-batch or an epoch is the caller's choice. Groups of the optimizer move along, each by its `lr_factor`.

All but `PlateauRate` compute the rate from the number of steps and the rate that the optimizer had when the schedule
was made, so rounding does not pile up, and they overwrite what else has set `optimizer.lr` in between. A schedule that
goes on from stored state sets the same rates bit for bit; load the optimizer's state too, in either order.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import TypedDict

from autobatch.errors import CheckpointError, DataError
from autobatch.optim.base import Optimizer
from autobatch.params.module import check_entries

SMALLEST_CHANGE = 1e-8  # of the rate by PlateauRate; torch's default `eps`


class RateState(TypedDict):
    """What a schedule needs to go on as if it had never stopped, fit for JSON."""

    kind: str
    """Name of the schedule's class."""
    values: dict[str, float | str | None]
    """What it was made with and how far it is, by name."""


class LearningRate(ABC):
    """The base of all schedules: an optimizer, and numbers that are stored.

    Subclasses keep those as attributes, and refuse wrong ones in `_check`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> RateState:
        """Copy all that the next step depends on, apart from the optimizer."""
        return {"kind": type(self).__name__, "values": self._values()}

    def load_state_dict(self, state: RateState) -> None:
        """Go on from a stored state, replacing what the schedule was made with.

        Raises:
            CheckpointError: it was stored by another schedule, or is damaged; nothing has changed.
        """
        kind = type(self).__name__
        doing = f"cannot load the state of the schedule {kind}"
        if not RateState.__required_keys__ <= state.keys():
            raise CheckpointError(
                f"{doing}: it holds {', '.join(state) or 'nothing'}; give what {kind}.state_dict() returned."
            )
        if state["kind"] != kind:
            raise CheckpointError(f"{doing}: it was stored by {state['kind']}; make that schedule instead.")
        check_entries(doing, dict.fromkeys(state["values"], ()), dict.fromkeys(self._values(), ()))
        loaded = copy.copy(self)
        vars(loaded).update(state["values"])
        try:
            loaded._check()
        except (DataError, TypeError) as error:
            raise CheckpointError(f"{doing}: {error} Give what {kind}.state_dict() returned.") from error
        vars(self).update(state["values"])

    @abstractmethod
    def _check(self) -> None:
        """Raise DataError where a number is out of range."""

    def _values(self) -> dict[str, float | str | None]:
        return {name: value for name, value in vars(self).items() if name != "optimizer"}

    def _require(self, holds: bool, name: str, needed: str) -> None:
        if not holds:
            raise DataError(f"{type(self).__name__} has {name}={getattr(self, name)}; give {needed}.")


class _FactorRate(LearningRate):
    """Schedules that multiply the first rate by a factor that depends on the number of steps alone."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(optimizer)
        self.base_lr = optimizer.lr
        self.n_taken = 0
        self._check()
        self._set_rate()

    def step(self) -> None:
        """Count a step, and set the rate of the next."""
        self.n_taken += 1
        self._set_rate()

    def load_state_dict(self, state: RateState) -> None:
        super().load_state_dict(state)
        self._set_rate()

    @abstractmethod
    def factor_at(self, n_taken: int) -> float:
        """The share of the first rate, after this many steps."""

    def _check(self) -> None:
        self._require(0.0 <= self.base_lr < math.inf, "base_lr", "at least 0, and no infinity")
        self._require(self.n_taken >= 0, "n_taken", "at least 0")

    def _set_rate(self) -> None:
        self.optimizer.lr = self.base_lr * self.factor_at(self.n_taken)


class ConstantRate(_FactorRate):
    """The rate as it is; or `factor` times it for `n_steps`, and then as it is.

    Args:
        optimizer: its `lr` is the rate.
        factor: share of the rate at first, at least 0.
        n_steps: for how long, at least 0.

    Raises:
        DataError: a number is out of range.

    Source: torch.optim.lr_scheduler.ConstantLR, equal step by step.
    """

    def __init__(self, optimizer: Optimizer, factor: float = 1.0, n_steps: int = 0) -> None:
        self.factor, self.n_steps = float(factor), int(n_steps)
        super().__init__(optimizer)

    def factor_at(self, n_taken: int) -> float:
        return self.factor if n_taken < self.n_steps else 1.0

    def _check(self) -> None:
        super()._check()
        self._require(0.0 <= self.factor < math.inf, "factor", "at least 0, and no infinity")
        self._require(self.n_steps >= 0, "n_steps", "at least 0")


class StepRate(_FactorRate):
    """The rate times `factor`, again after every `n_steps`.

    Args:
        optimizer: its `lr` is the rate of the first `n_steps`.
        n_steps: between two changes, at least 1.
        factor: by which the rate changes, at least 0.

    Raises:
        DataError: a number is out of range.

    Source: torch.optim.lr_scheduler.StepLR, equal step by step.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> optimizer = ab.optim.SGD(ab.Linear(2, 1, rng=np.random.default_rng(0)), lr=1.0)
    >>> rate = ab.optim.StepRate(optimizer, n_steps=2, factor=0.5)
    >>> for _ in range(5):
    ...     print(optimizer.lr, end=" ")
    ...     rate.step()
    1.0 1.0 0.5 0.5 0.25
    """

    def __init__(self, optimizer: Optimizer, n_steps: int, factor: float = 0.1) -> None:
        self.n_steps, self.factor = int(n_steps), float(factor)
        super().__init__(optimizer)

    def factor_at(self, n_taken: int) -> float:
        return self.factor ** (n_taken // self.n_steps)

    def _check(self) -> None:
        super()._check()
        self._require(self.n_steps >= 1, "n_steps", "at least 1")
        self._require(0.0 <= self.factor < math.inf, "factor", "at least 0, and no infinity")


class CosineRate(_FactorRate):
    """A straight line up to the rate, and half a cosine down from it.

    Args:
        optimizer: its `lr` is the peak.
        n_steps: after how many steps the end is reached, warm-up included; the rate stays there.
        warmup: after how many steps the peak is reached, below `n_steps`.
        first_factor: share of the peak at the first step of the warm-up; None is 1 / (warmup + 1), so that the rate
            rises evenly from 0 without a step at rate 0.
        last_factor: share of the peak at the end.

    Raises:
        DataError: a number is out of range.

    Source: Loshchilov and Hutter 2017 (arXiv:1608.03983), equation 5, without restarts;
    torch.optim.lr_scheduler.CosineAnnealingLR, and behind LinearLR in a SequentialLR, equal step by step.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> optimizer = ab.optim.SGD(ab.Linear(2, 1, rng=np.random.default_rng(0)), lr=1.0)
    >>> rate = ab.optim.CosineRate(optimizer, n_steps=7, warmup=3)
    >>> for _ in range(8):
    ...     print(round(optimizer.lr, 3), end=" ")
    ...     rate.step()
    0.25 0.5 0.75 1.0 0.854 0.5 0.146 0.0
    """

    def __init__(
        self,
        optimizer: Optimizer,
        n_steps: int,
        warmup: int = 0,
        first_factor: float | None = None,
        last_factor: float = 0.0,
    ) -> None:
        self.n_steps, self.warmup, self.last_factor = int(n_steps), int(warmup), float(last_factor)
        self.first_factor = 1.0 / (max(warmup, 0) + 1) if first_factor is None else float(first_factor)
        super().__init__(optimizer)

    def factor_at(self, n_taken: int) -> float:
        if n_taken < self.warmup:
            return self.first_factor + (1.0 - self.first_factor) * n_taken / self.warmup
        done = min(1.0, (n_taken - self.warmup) / (self.n_steps - self.warmup))
        return self.last_factor + (1.0 - self.last_factor) * (1.0 + math.cos(math.pi * done)) / 2.0

    def _check(self) -> None:
        super()._check()
        self._require(0 <= self.warmup < self.n_steps, "warmup", f"at least 0 and below n_steps={self.n_steps}")
        self._require(0.0 <= self.first_factor <= 1.0, "first_factor", "0 to 1")
        self._require(0.0 <= self.last_factor <= 1.0, "last_factor", "0 to 1")


class PlateauRate(LearningRate):
    """The rate times `factor`, each time that a measure has stopped getting better.

    It is better when it goes below (mode "max": above) the best so far by more than `threshold` of that; NaN never is.

    Args:
        optimizer: its `lr` is changed from whatever it is.
        factor: by which the rate changes, below 1.
        patience: how many steps in a row may bring nothing better; the next one changes the rate.
        mode: "min" for a loss, "max" for an accuracy.
        threshold: share of the best by which it must be better.
        cooldown: for how many steps after a change nothing is counted.
        min_lr: the rate goes no lower; a change of at most 1e-8 is not made at all.

    Raises:
        DataError: a number is out of range, or there is no such mode.

    Source: torch.optim.lr_scheduler.ReduceLROnPlateau with threshold_mode "rel", equal step by step.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> optimizer = ab.optim.SGD(ab.Linear(2, 1, rng=np.random.default_rng(0)), lr=1.0)
    >>> rate = ab.optim.PlateauRate(optimizer, factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.5, 2.0, 1.0):
    ...     rate.step(loss)
    ...     print(optimizer.lr, end=" ")
    1.0 1.0 1.0 0.5 0.5
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "min",
        threshold: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(optimizer)
        self.factor, self.patience, self.mode = float(factor), int(patience), mode
        self.threshold, self.cooldown, self.min_lr = float(threshold), int(cooldown), float(min_lr)
        self.best: float | None = None
        self.n_worse = 0
        self.n_cooling = 0
        self._check()

    def step(self, measure: float) -> None:
        """Take the measure of a step, and change the rate if it is time."""
        if self._is_better(float(measure)):
            self.best, self.n_worse = float(measure), 0
        else:
            self.n_worse += 1
        if self.n_cooling > 0:
            self.n_cooling -= 1
            self.n_worse = 0
        if self.n_worse > self.patience:
            lr = max(self.optimizer.lr * self.factor, self.min_lr)
            if self.optimizer.lr - lr > SMALLEST_CHANGE:
                self.optimizer.lr = lr
            self.n_worse, self.n_cooling = 0, self.cooldown

    def _is_better(self, measure: float) -> bool:
        if self.mode == "min":
            return measure < (math.inf if self.best is None else self.best * (1.0 - self.threshold))
        return measure > (-math.inf if self.best is None else self.best * (1.0 + self.threshold))

    def _check(self) -> None:
        self._require(0.0 <= self.factor < 1.0, "factor", "at least 0 and below 1")
        self._require(self.mode in ("min", "max"), "mode", "'min' or 'max'")
        self._require(0.0 <= self.threshold < 1.0, "threshold", "at least 0 and below 1")
        self._require(0.0 <= self.min_lr < math.inf, "min_lr", "at least 0, and no infinity")
        self._require(self.best is None or not math.isnan(self.best), "best", "a number or None")
        for name in ("patience", "cooldown", "n_worse", "n_cooling"):
            self._require(getattr(self, name) >= 0, name, "at least 0")
