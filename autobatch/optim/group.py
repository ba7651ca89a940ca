"""Groups of parameters that an optimizer treats differently from the rest."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autobatch.arguments import refusal
from autobatch.errors import DataError
from autobatch.keywords import checked

Overrides = dict[str, dict[str, float]]
"""Parameter name to the hyperparameters that differ for it: `lr_factor`, `weight_decay`."""


@checked()
@dataclass(frozen=True)
class Group:
    """Parameters, selected by name, with a learning rate or a weight decay of their own.

    Args:
        names: names as in `Module.parameters`, or patterns, where `*` matches any characters including dots, and `?`
            matches one: `"*bias"`, `{"embedding.weight", "output.*"}`.
        lr_factor: the group's learning rate as a multiple of `optimizer.lr`, so that setting `optimizer.lr`, by hand or
            by a schedule, changes all groups together.
        weight_decay: the group's weight decay; None for the optimizer's.

    Raises:
        DataError: a number is negative or not finite, or `names` is empty.

    >>> import numpy as np
    >>> import autobatch as ab
    >>> model = ab.Linear(2, 1, rng=np.random.default_rng(0))
    >>> groups = [ab.optim.Group("*bias", weight_decay=0.0), ab.optim.Group({"weight"}, lr_factor=0.1)]
    >>> optimizer = ab.optim.AdamW(model, lr=1e-3, weight_decay=0.01, groups=groups)
    """

    names: str | Collection[str]
    lr_factor: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if not self.patterns:
            raise DataError("names of Group must not be empty; give names or patterns of parameters.")
        check_overrides(f"make a Group of {self.patterns}", self.overrides)

    @property
    def patterns(self) -> list[str]:
        """Return the names and patterns, sorted."""
        return [self.names] if isinstance(self.names, str) else sorted(self.names)

    @property
    def overrides(self) -> dict[str, float]:
        """Return the hyperparameters that the group sets."""
        decay = {} if self.weight_decay is None else {"weight_decay": float(self.weight_decay)}
        return {"lr_factor": float(self.lr_factor), **decay}

    def selects(self, name: str) -> bool:
        """Return whether a name or pattern of the group matches `name`."""
        return any(name == pattern or fnmatchcase(name, pattern) for pattern in self.patterns)


def assign_groups(doing: str, groups: Sequence[Group], names: Collection[str]) -> Overrides:
    """Assign to each parameter the hyperparameters of the first group that selects it.

    Raises:
        DataError: a name or pattern matches none of `names`, or a group selects only parameters of earlier groups.
    """
    assigned: Overrides = {}
    for group in groups:
        if not isinstance(group, Group):
            raise refusal("groups", "a list of Groups", groups)
        for pattern in group.patterns:
            if not any(Group(pattern).selects(name) for name in names):
                raise DataError(f"{doing}: {pattern!r} in groups= must match a parameter: {', '.join(names)}.")
        chosen = [name for name in names if name not in assigned and group.selects(name)]
        if not chosen:
            raise DataError(
                f"{doing}: earlier groups already select all parameters of {group.patterns} in groups=; put it before "
                "them, or leave it out."
            )
        assigned |= dict.fromkeys(chosen, group.overrides)
    return assigned


def check_overrides(doing: str, overrides: dict[str, float]) -> None:
    """Raise a DataError if a number is negative or not finite."""
    for option, value in overrides.items():
        if not 0.0 <= value < math.inf:
            raise DataError(f"cannot {doing}: {option} must be at least 0 and finite, got {value}.")
