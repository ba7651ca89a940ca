"""The table of ops of ATen that have a counterpart here, and for which kinds of numbers each is right.

A counterpart computes with floats of the model, among which bools are 0 and 1. It is right where torch computes in that
dtype, too: an op of ints, or one that casts, is left to torch unless its rule allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from autobatch.torch.kinds import WITHIN


class Kinds(NamedTuple):
    """The kinds of numbers in a call of an op.

    Attributes:
        given: the tensors among its arguments; results: tensors like its results.
        model: the dtype of the model.
    """

    given: Sequence[torch.Tensor]
    results: Sequence[torch.Tensor]
    model: torch.dtype

    @property
    def dtypes(self) -> set[torch.dtype]:
        """All dtypes."""
        return {x.dtype for x in (*self.given, *self.results)}

    def gives(self, *dtypes: torch.dtype) -> bool:
        """Whether the results are of these dtypes."""
        return all(x.dtype in dtypes for x in self.results)

    def fits(self, x: torch.Tensor) -> bool:
        """Whether torch converts an argument to the dtype of the model before it computes, if that is the result's."""
        is_within = x.dtype in (self.model, torch.bool, torch.int64, *WITHIN[self.model])
        return not x.dtype.is_complex and (is_within or not x.dim())


Rule = Callable[[Kinds], bool]


def floats(kinds: Kinds) -> bool:
    """Whether torch computes floats of the model; ints and bools among the arguments count as numbers."""
    return kinds.gives(kinds.model) and all(map(kinds.fits, kinds.given))


def conditions(kinds: Kinds) -> bool:
    """Whether all are bools."""
    return kinds.dtypes <= {torch.bool}


def moved(kinds: Kinds) -> bool:
    """Whether numbers only get another place: floats of the model, or bools."""
    return kinds.dtypes <= {kinds.model} or conditions(kinds)


def seen(kinds: Kinds) -> bool:
    """Whether a view is one of floats of the model, of bools or of ints."""
    return moved(kinds) or kinds.dtypes <= {torch.int64}


def chosen(kinds: Kinds) -> bool:
    """Whether floats of the model are selected, or where conditions hold, bools."""
    return floats(kinds) or conditions(kinds)


def compared(kinds: Kinds) -> bool:
    """Whether torch compares floats of the model, or ints with ints."""
    common = kinds.given[0]
    for x in kinds.given[1:]:
        common = torch.empty((1,) * max(common.dim(), x.dim()), dtype=torch.result_type(common, x), device="meta")
    return common.dtype in (kinds.model, torch.int64, torch.bool)


def tested(kinds: Kinds) -> bool:
    """Whether numbers count as true or false."""
    return kinds.gives(torch.bool) and all(map(kinds.fits, kinds.given))


def indexed(kinds: Kinds) -> bool:
    """Whether ints number what is taken of floats of the model."""
    return kinds.gives(kinds.model) and kinds.dtypes <= {kinds.model, torch.int64}


def placed(kinds: Kinds) -> bool:
    """Whether floats of the model are looked through for the places of some."""
    return kinds.gives(kinds.model, torch.int64) and all(x.dtype is kinds.model for x in kinds.given)


def scaled(kinds: Kinds) -> bool:
    """Whether floats of the model, of which there are some, are divided by their sum."""
    return floats(kinds) and all(x.numel() for x in kinds.given)


class Counterpart(NamedTuple):
    """What stands for an op of ATen.

    Attributes:
        function: is given values, parameters and arrays in the place of tensors, and all else as torch gives it.
        is_right: for these kinds of numbers.
    """

    function: Callable[..., Any]
    is_right: Rule


OPS: dict[str, Counterpart] = {}
"""By name."""


def op(*names: str, of: Rule = floats) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark what stands for the ops of these names."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        OPS.update(dict.fromkeys(names, Counterpart(function, of)))
        return function

    return mark


def stand_for(of: Rule = floats, **functions: Callable[..., Any]) -> None:
    """Note what stands for ops, by name."""
    OPS.update({name: Counterpart(function, of) for name, function in functions.items()})
