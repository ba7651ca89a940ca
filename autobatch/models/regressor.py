"""The common part of models that predict numbers, whose targets may be standardised in training."""

from __future__ import annotations

from typing import Any

import autobatch as ab


class Regressor(ab.Module):
    """The base of models whose loss compares a number x with (target - mean) / std, and that predict mean + std x.

    Attributes:
        target_mean, target_std: mean and standard deviation of the training data's targets, in their unit; by default 0
            and 1.
    """

    target_mean: float = 0.0
    target_std: float = 1.0

    @ab.cell
    def to_unit(self, x: Any) -> Any:
        """Convert a standardised number, a scalar, to the unit of the targets."""
        return self.target_mean + self.target_std * x

    def in_unit(self, x: Any) -> Any:
        """Convert a standardised number, a scalar, to the unit of the targets, without a cell if that is the same."""
        return x if (self.target_mean, self.target_std) == (0.0, 1.0) else self.to_unit(x)

    def standardize(self, target: float) -> float:
        """Convert a target to a standardised number, in float64."""
        return (target - self.target_mean) / self.target_std
