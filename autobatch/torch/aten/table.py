"""The table of ops of ATen that have a counterpart here, with a rule for the kinds of numbers that each supports.

A counterpart computes with floats of the model, in which bools are 0 and 1. It is valid if torch computes in that dtype
too. An op on ints, or one that casts, is left to torch unless its rule allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from autobatch.torch.kinds import WITHIN


class Kinds(NamedTuple):
    """The kinds of numbers in a call of an op.

    Attributes:
        given: the tensors among its arguments.
        results: tensors of the shapes and dtypes of its results.
        model: the dtype of the model.
    """

    given: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]
    model: torch.dtype

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Return all dtypes."""
        return {x.dtype for x in (*self.given, *self.results)}

    def gives(self, *dtypes: torch.dtype) -> bool:
        """Return whether all results have one of these dtypes."""
        return all(x.dtype in dtypes for x in self.results)

    def fits(self, x: torch.Tensor) -> bool:
        """Return whether torch converts an argument to the model's dtype before computing a result of that dtype."""
        is_within = x.dtype in (self.model, torch.bool, torch.int64, *WITHIN[self.model])
        return not x.dtype.is_complex and (is_within or not x.dim())


Rule = Callable[[Kinds], bool]


def floats(kinds: Kinds) -> bool:
    """Return whether torch computes floats of the model; int and bool arguments count as numbers."""
    return kinds.gives(kinds.model) and all(map(kinds.fits, kinds.given))


def conditions(kinds: Kinds) -> bool:
    """Return whether all are bools."""
    return kinds.dtypes <= {torch.bool}


def moved(kinds: Kinds) -> bool:
    """Return whether all are floats of the model, or all are bools, as for ops that only move numbers."""
    return kinds.dtypes <= {kinds.model} or conditions(kinds)


def seen(kinds: Kinds) -> bool:
    """Return whether all are floats of the model, all bools or all ints, as for views."""
    return moved(kinds) or kinds.dtypes <= {torch.int64}


def chosen(kinds: Kinds) -> bool:
    """Return whether floats of the model, or bools, are selected."""
    return floats(kinds) or conditions(kinds)


def compared(kinds: Kinds) -> bool:
    """Return whether torch compares in the model's dtype, or as ints or bools."""
    common = kinds.given[0]
    for x in kinds.given[1:]:
        # In torch's promotion, a tensor without axes counts less, so the ranks are kept.
        common = torch.empty((1,) * max(common.dim(), x.dim()), dtype=torch.result_type(common, x), device="meta")
    return common.dtype in (kinds.model, torch.int64, torch.bool)


def tested(kinds: Kinds) -> bool:
    """Return whether numbers are tested for truth, which gives bools."""
    return kinds.gives(torch.bool) and all(map(kinds.fits, kinds.given))


def indexed(kinds: Kinds) -> bool:
    """Return whether ints index floats of the model."""
    return kinds.gives(kinds.model) and kinds.dtypes <= {kinds.model, torch.int64}


def placed(kinds: Kinds) -> bool:
    """Return whether floats of the model are searched for positions."""
    return kinds.gives(kinds.model, torch.int64) and all(x.dtype is kinds.model for x in kinds.given)


def scaled(kinds: Kinds) -> bool:
    """Return whether floats of the model, at least one, are divided by their sum."""
    return floats(kinds) and all(x.numel() for x in kinds.given)


class Counterpart(NamedTuple):
    """The counterpart of an op of ATen.

    Attributes:
        function: a function of torch's arguments, with values, parameters and arrays in place of tensors.
        is_right: returns whether the function is valid for the kinds of numbers of a call.
    """

    function: Callable[..., Any]
    is_right: Rule


OPS: dict[str, Counterpart] = {}
"""The counterparts by op name."""


def op(*names: str, of: Rule = floats) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the counterpart of the ops of these names."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        OPS.update(dict.fromkeys(names, Counterpart(function, of)))
        return function

    return mark


def stand_for(of: Rule = floats, **functions: Callable[..., Any]) -> None:
    """Register counterparts of ops, by name."""
    OPS.update({name: Counterpart(function, of) for name, function in functions.items()})
