"""Kinds of numbers: how tensors of any dtype lie among the floats of a model, and come back.

Values of programs are floats of the model's dtype. What an op of torch gives in another dtype lies among them: numbers
of a narrower dtype as they are, bools as 0 and 1, ints as whole numbers, and a complex number as two. The type of the
value says what its numbers stand for (`autobatch.ops.shaping.stand_for`), and whatever reads it gets a tensor of that
dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from autobatch.errors import GraphError, NumericError

WITHIN = {
    torch.float32: (torch.float16, torch.bfloat16, torch.complex32, torch.complex64),
    torch.float64: (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.complex32,
        torch.complex64,
        torch.complex128,
    ),
}
"""For each dtype of a model, the other dtypes that it holds to the bit, besides those of ints and bools."""
MOST = {torch.float32: 2**24, torch.float64: 2**53}
"""Up to here, whole numbers of a dtype are exact."""


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype, as types of values have it."""
    return str(dtype).removeprefix("torch.")


def dtype_of_name(name: str) -> torch.dtype:
    """The dtype of a name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def is_float(dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype have gradients."""
    return dtype.is_floating_point or dtype.is_complex


def check_kind(dtype: torch.dtype, model: torch.dtype) -> None:
    """Refuse a dtype that cannot lie among the floats of a model.

    Raises:
        GraphError: it cannot.
    """
    if dtype is not model and is_float(dtype) and dtype not in WITHIN[model]:
        raise GraphError(
            f"it makes a tensor of {dtype}, which does not fit the {model} of the model; convert it in the cell, by "
            f".to(...), or call .double() on the module."
        )


def shape_within(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """The shape of what holds a tensor among floats."""
    return (*shape, 2) if dtype.is_complex else shape


def shape_outside(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """The shape of the tensor that floats of this shape stand for."""
    return shape[:-1] if dtype.is_complex else shape


def to_floats(x: torch.Tensor, model: torch.dtype) -> torch.Tensor:
    """What holds a tensor among the floats of a model; ints and bools stay as they are, see `copy_whole`."""
    if x.dtype is model or not is_float(x.dtype):
        return x
    return torch.view_as_real(x.resolve_conj()).to(model) if x.dtype.is_complex else x.to(model)


def from_floats(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor of a dtype that floats, or ints of the data, stand for."""
    if x.dtype is dtype:
        return x
    if not dtype.is_complex:
        return x.to(dtype)
    return torch.view_as_complex(x.clone(memory_format=torch.contiguous_format)).to(dtype)


def holds_ints(dtype: torch.dtype, x: torch.Tensor) -> bool:
    """Whether floats of a dtype hold all numbers of a tensor of ints or bools."""
    if x.dtype not in (torch.int32, torch.int64) or not x.numel():
        return True
    least, largest = (int(end) for end in torch.aminmax(x))
    return max(-least, largest) <= MOST[dtype]


def copy_whole(x: torch.Tensor, place: torch.Tensor) -> None:
    """Copy ints or bools to a place among floats.

    Raises:
        NumericError: there are ints that these floats do not hold.
    """
    if not holds_ints(place.dtype, x):
        largest = max(abs(int(end)) for end in torch.aminmax(x))
        raise NumericError(
            f"a cell gives the int {largest}, but ints that cells compute are kept as {place.dtype}, exact up to "
            f"{MOST[place.dtype]}; call .double() on the module, or compute it from the results."
        )
    place.copy_(x)


def as_tensor(column: Any, name: str) -> torch.Tensor:
    """The rows of a result, as the tensor that they stand for."""
    x = column if isinstance(column, torch.Tensor) else torch.from_numpy(column)
    return from_floats(x, dtype_of_name(name)) if name else x
