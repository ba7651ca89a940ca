"""Learning rate schedules: functions from the number of steps taken to the rate of the next step.

A new schedule sets the rate of the first step, and each `step()` sets the next rate. A step may be a mini-batch or an
epoch. Groups of the optimizer scale the rate by their `lr_factor`. A schedule overwrites other changes of
`optimizer.lr`, except `PlateauRate`, which follows a measure and multiplies the current rate.

A schedule resumed from `state_dict` gives bit-identical rates. The optimizer's state is stored separately, and may be
loaded before or after it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypedDict

from autobatch.arguments import RAW, TEXTS, is_bool, refusal
from autobatch.errors import CheckpointError, DataError
from autobatch.keywords import checked, suggesting
from autobatch.optim.base import Optimizer, check_kind
from autobatch.params.module import check_entries

SMALLEST_CHANGE = 1e-8  # smaller changes are skipped by PlateauRate; torch's default `eps`


class RateState(TypedDict):
    """The state of a schedule, as JSON values."""

    kind: str
    """Name of the schedule's class."""
    values: dict[str, float | str | None]
    """Its arguments and its progress, by name."""


def _allow(convert: Callable[[Any], Any], needed: str, holds: Callable[[Any], bool]) -> Mapping[str, Any]:
    """Make the metadata of a field: the conversion of its values, and the allowed ones, in words and as a test."""
    return {"convert": convert, "needed": needed, "holds": holds}


COUNT = _allow(int, "at least 0", lambda n: n >= 0)
POSITIVE = _allow(int, "at least 1", lambda n: n >= 1)
RATE = _allow(float, "at least 0 and finite", lambda x: 0.0 <= x < math.inf)
BELOW_1 = _allow(float, "at least 0 and below 1", lambda x: 0.0 <= x < 1.0)
SHARE = _allow(float, "0 to 1", lambda x: 0.0 <= x <= 1.0)
MAYBE_SHARE = _allow(lambda x: x if x is None else float(x), "0 to 1", lambda x: x is None or 0.0 <= x <= 1.0)
MODE = _allow(str, "'min' or 'max'", lambda mode: mode in ("min", "max"))
BEST = _allow(lambda x: x, "a number or None", lambda x: x is None or not math.isnan(x))


@dataclass(eq=False)
class LearningRate:
    """The base class of schedules. All fields of a subclass but `optimizer` are its state."""

    optimizer: Optimizer = field(repr=False)

    def __post_init__(self) -> None:
        for one in self._stored():
            setattr(self, one.name, one.metadata["convert"](getattr(self, one.name)))
        self._check(self._values())

    def state_dict(self) -> RateState:
        """Copy the arguments and the progress, without the optimizer."""
        return {"kind": type(self).__name__, "values": self._values()}

    def load_state_dict(self, state: RateState) -> None:
        """Resume from stored state, which includes the schedule's arguments.

        Args:
            state: the result of `state_dict`.

        Raises:
            CheckpointError: another schedule class stored it, or it is malformed; nothing has changed.
        """
        doing = check_kind("schedule", self, state, RateState.__required_keys__)
        values = state["values"]
        check_entries(doing, dict.fromkeys(values, ()), dict.fromkeys(self._values(), ()))
        try:
            self._check(values)
        except (DataError, *RAW) as error:
            raise CheckpointError(f"{doing}: {error} Pass the result of {type(self).__name__}.state_dict().") from error
        vars(self).update(values)

    def _stored(self) -> list[Field[Any]]:
        return [one for one in fields(self) if one.name != "optimizer"]

    def _values(self) -> dict[str, float | str | None]:
        return {one.name: getattr(self, one.name) for one in self._stored()}

    def _check(self, values: Mapping[str, Any]) -> None:
        """Raise a DataError if a value is out of range."""
        for one in self._stored():
            if not one.metadata["holds"](values[one.name]):
                raise DataError(
                    f"{one.name} of {type(self).__name__} must be {one.metadata['needed']}, got {values[one.name]}."
                )


@dataclass(eq=False)
class _FactorRate(LearningRate, ABC):
    """A schedule whose rate is the optimizer's initial rate times a function of the number of steps taken."""

    base_lr: float = field(init=False, metadata=RATE)
    n_taken: int = field(init=False, default=0, metadata=COUNT)

    def __post_init__(self) -> None:
        self.base_lr = self.optimizer.lr
        super().__post_init__()
        self._set_rate()

    @abstractmethod
    def factor_at(self, n_taken: int) -> float:
        """Return the rate after `n_taken` steps as a multiple of the initial rate."""

    def step(self) -> None:
        """Count a step, and set the rate of the next one."""
        self.n_taken += 1
        self._set_rate()

    def load_state_dict(self, state: RateState) -> None:
        super().load_state_dict(state)
        self._set_rate()

    def _set_rate(self) -> None:
        self.optimizer.lr = self.base_lr * self.factor_at(self.n_taken)


@checked()
@dataclass(eq=False)
class ConstantRate(_FactorRate):
    """Multiply the rate of `optimizer` by `factor` in the first `n_steps` steps; torch's ConstantLR."""

    factor: float = field(default=1.0, metadata=RATE)
    n_steps: int = field(default=0, metadata=COUNT)

    def factor_at(self, n_taken: int) -> float:
        return self.factor if n_taken < self.n_steps else 1.0


@checked()
@dataclass(eq=False)
class StepRate(_FactorRate):
    """Multiply the rate of `optimizer` by `factor` after every `n_steps` steps; torch's StepLR.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> optimizer = ab.optim.SGD(ab.Linear(2, 1, rng=np.random.default_rng(0)), lr=1.0)
    >>> rate = ab.optim.StepRate(optimizer, n_steps=2, factor=0.5)
    >>> for _ in range(5):
    ...     print(optimizer.lr, end=" ")
    ...     rate.step()
    1.0 1.0 0.5 0.5 0.25
    """

    n_steps: int = field(metadata=POSITIVE)
    factor: float = field(default=0.1, metadata=RATE)

    def factor_at(self, n_taken: int) -> float:
        return self.factor ** (n_taken // self.n_steps)


@checked()
@dataclass(eq=False)
class CosineRate(_FactorRate):
    """Warm up linearly to the optimizer's rate, then decay along half a cosine.

    Args:
        optimizer: its `lr` is the peak.
        n_steps: steps until the end, including warm-up; the rate is constant afterwards.
        warmup: steps until the peak, below `n_steps`.
        first_factor: first rate of the warm-up as a fraction of the peak; None for 1 / (warmup + 1), a linear rise from
            0 that skips the step at rate 0.
        last_factor: rate at the end as a fraction of the peak.

    Source: Loshchilov and Hutter 2017 (arXiv:1608.03983), equation 5, without restarts. Equal to torch's
    CosineAnnealingLR; with a warm-up, to a SequentialLR of LinearLR and CosineAnnealingLR.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> optimizer = ab.optim.SGD(ab.Linear(2, 1, rng=np.random.default_rng(0)), lr=1.0)
    >>> rate = ab.optim.CosineRate(optimizer, n_steps=7, warmup=3)
    >>> for _ in range(8):
    ...     print(round(optimizer.lr, 3), end=" ")
    ...     rate.step()
    0.25 0.5 0.75 1.0 0.854 0.5 0.146 0.0
    """

    n_steps: int = field(metadata=COUNT)
    warmup: int = field(default=0, metadata=COUNT)
    first_factor: float | None = field(default=None, metadata=MAYBE_SHARE)
    last_factor: float = field(default=0.0, metadata=SHARE)

    def factor_at(self, n_taken: int) -> float:
        if n_taken < self.warmup:
            first = 1.0 / (self.warmup + 1) if self.first_factor is None else self.first_factor
            return first + (1.0 - first) * n_taken / self.warmup
        done = min(1.0, (n_taken - self.warmup) / (self.n_steps - self.warmup))
        return self.last_factor + (1.0 - self.last_factor) * (1.0 + math.cos(math.pi * done)) / 2.0

    def _check(self, values: Mapping[str, Any]) -> None:
        super()._check(values)
        if values["warmup"] >= values["n_steps"]:
            raise DataError(
                f"warmup of CosineRate must be at least 0 and below n_steps={values['n_steps']}, got "
                f"{values['warmup']}."
            )


@checked()
@dataclass(eq=False)
class PlateauRate(LearningRate):
    """Multiply the optimizer's rate by `factor` when a measure stops improving; torch's ReduceLROnPlateau.

    Args:
        optimizer: its current `lr` is multiplied.
        factor: the factor, below 1.
        patience: number of consecutive steps without improvement that are tolerated; the next one lowers the rate.
        mode: "min" for a loss, "max" for an accuracy.
        threshold: minimum improvement over the best measure, as a fraction of it.
        cooldown: steps after a change that are not counted.
        min_lr: the lowest rate; changes of at most 1e-8 are skipped.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> optimizer = ab.optim.SGD(ab.Linear(2, 1, rng=np.random.default_rng(0)), lr=1.0)
    >>> rate = ab.optim.PlateauRate(optimizer, factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.5, 2.0, 1.0):
    ...     rate.step(loss)
    ...     print(optimizer.lr, end=" ")
    1.0 1.0 1.0 0.5 0.5
    """

    factor: float = field(default=0.1, metadata=BELOW_1)
    patience: int = field(default=10, metadata=COUNT)
    mode: str = field(default="min", metadata=MODE)
    threshold: float = field(default=1e-4, metadata=BELOW_1)
    cooldown: int = field(default=0, metadata=COUNT)
    min_lr: float = field(default=0.0, metadata=RATE)
    best: float | None = field(init=False, default=None, metadata=BEST)
    n_worse: int = field(init=False, default=0, metadata=COUNT)
    n_cooling: int = field(init=False, default=0, metadata=COUNT)

    @suggesting()
    def step(self, measure: float) -> None:
        """Record the `measure` of a step, a number, and lower the rate if the measure has stopped improving."""
        if is_bool(measure) or isinstance(measure, TEXTS):
            raise refusal("measure of step", "a number", measure)
        number = float(measure)
        self.n_worse += 1
        if self._is_better(number):
            self.best, self.n_worse = number, 0
        # In the order of torch: a step that is not counted still updates the best measure.
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
