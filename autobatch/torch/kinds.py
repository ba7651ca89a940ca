"""Kinds of numbers: how tensors of any dtype are stored as floats of a model, and converted back.

Values of programs are floats of the model's dtype. Results of torch ops in other dtypes are stored as such floats:
numbers of a narrower dtype unchanged, bools as 0 and 1, ints as whole numbers, and a complex number as two floats. The
type of the value names the dtype that its numbers represent (`autobatch.ops.shaping.stand_for`), and its readers get a
tensor of that dtype.
"""

from __future__ import annotations

from typing import Any

import torch

from autobatch.errors import GraphError, NumericError
from autobatch.torch.memory import to_tensor

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
"""For each dtype of a model, the other dtypes that it represents exactly, besides ints and bools."""
MOST = {torch.float32: 2**24, torch.float64: 2**53}
"""The largest magnitude up to which a dtype represents all ints exactly."""


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype in types of values."""
    return str(dtype).removeprefix("torch.")


def dtype_of_name(name: str) -> torch.dtype:
    """Return the dtype of this name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def is_float(dtype: torch.dtype) -> bool:
    """Return whether numbers of a dtype have gradients."""
    return dtype.is_floating_point or dtype.is_complex


def check_kind(dtype: torch.dtype, model: torch.dtype) -> None:
    """Check that numbers of a dtype can be stored as floats of a model.

    Raises:
        GraphError: they cannot.
    """
    if dtype is not model and is_float(dtype) and dtype not in WITHIN[model]:
        raise GraphError(
            f"it makes a tensor of {dtype}, which the model's {model} cannot represent; convert it in the cell, by "
            f".to(...), or call .double() on the module."
        )


def shape_within(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """Return the shape of the floats that store a tensor."""
    return (*shape, 2) if dtype.is_complex else shape


def shape_outside(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """Return the shape of the tensor that floats of this shape store."""
    return shape[:-1] if dtype.is_complex else shape


def to_floats(x: torch.Tensor, model: torch.dtype) -> torch.Tensor:
    """Convert a tensor to floats of a model; ints and bools stay unchanged, see `copy_whole`."""
    if x.dtype is model or not is_float(x.dtype):
        return x
    return torch.view_as_real(x.resolve_conj()).to(model) if x.dtype.is_complex else x.to(model)


def from_floats(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert floats, or ints of the data, to the tensor of a dtype that they represent."""
    if x.dtype is dtype:
        return x
    if not dtype.is_complex:
        return x.to(dtype)
    # In a part of wider rows, numbers may begin at odd places, which torch cannot view as complex.
    return torch.view_as_complex(x.clone(memory_format=torch.contiguous_format)).to(dtype)


def holds_ints(dtype: torch.dtype, x: torch.Tensor) -> bool:
    """Return whether floats of a dtype represent all numbers of a tensor of ints or bools exactly."""
    if x.dtype not in (torch.int32, torch.int64) or not x.numel():
        return True
    least, largest = (int(end) for end in torch.aminmax(x))
    return max(-least, largest) <= MOST[dtype]


def copy_whole(x: torch.Tensor, place: torch.Tensor) -> None:
    """Copy ints or bools to floats.

    Raises:
        NumericError: the floats cannot represent an int exactly.
    """
    if not holds_ints(place.dtype, x):
        largest = max(abs(int(end)) for end in torch.aminmax(x))
        raise NumericError(
            f"ints that cells compute must be at most {MOST[place.dtype]}, because they are stored as {place.dtype}, "
            f"got {largest}; call .double() on the module, or compute it from the results."
        )
    place.copy_(x)


def as_tensor(column: Any, name: str) -> torch.Tensor:
    """Convert the rows of a result to the tensor that they represent; `name` is its dtype, "" for the model's."""
    x = column if isinstance(column, torch.Tensor) else to_tensor(column)
    return from_floats(x, dtype_of_name(name)) if name else x
