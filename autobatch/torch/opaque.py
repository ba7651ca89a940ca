"""Cells that torch itself runs: a body with ops that we lack becomes one op, whose kernel calls the body on a batch.

The op takes all values and parameters that the body reads, and gives all its outputs as one vector per node. Its kernel
gives the body the whole batch, if drawn numbers show that it does to many rows what it does to each; else the body is
mapped over the rows by `torch.func.vmap`. The gradient runs the body once more, with torch's own autograd: nothing is
kept from the forward run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from autobatch import ops
from autobatch.errors import GraphError
from autobatch.ops.define import Op, shape_of
from autobatch.ops.shaping import slice_
from autobatch.torch.parameters import TENSOR_TYPES, TensorParameter

ROWS = 3  # of the batch on which a body is tried


class Body:
    """A function of tensors that torch runs.

    Args:
        name: of the cell.
        function: gives a list of tensors.
        examples: arguments of one node, of the shapes and dtypes that it takes.
        parameters: that it reads beside.
        why: torch runs it.

    Attributes:
        shapes: of the arguments; floats: the places of those that are floats.
        outputs: the shape of each output; size: how many numbers all have.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Sequence[torch.Tensor]],
        examples: Sequence[torch.Tensor],
        parameters: Sequence[TensorParameter],
        why: str,
    ) -> None:
        self.name, self._function, self.parameters, self.why = name, function, parameters, why
        self.floats = [k for k, example in enumerate(examples) if example.is_floating_point()]
        self.shapes = [tuple(example.shape) for example in examples]
        self._kept: tuple[list[Any], list[torch.Tensor]] = [], []
        draw = torch.Generator().manual_seed(0)
        shapes = [(ROWS, *shape) for shape in self.shapes]
        rows = [
            torch.randn(shape, generator=draw, dtype=x.dtype) if x.is_floating_point() else x.expand(shape)
            for x, shape in zip(examples, shapes, strict=True)
        ]
        with torch.no_grad():
            self._takes_batches = self._sees_batches(rows)
            found = self._map(rows, [0] * len(rows))
        for y in found:
            if y.dtype not in TENSOR_TYPES.values():
                raise GraphError(f"it returns a tensor of {y.dtype}; a cell that torch runs returns floats.")
        self.outputs = [tuple(y.shape[1:]) for y in found]
        self.size = sum(map(math.prod, self.outputs))

    def __repr__(self) -> str:
        return self.name

    def forward(self, arrays: Sequence[Any], out: Any) -> None:
        """Compute the outputs of all rows, as vectors."""
        with torch.no_grad():
            flat = self._flat(self._map(*self._enter(arrays, len(out))), len(out))
        torch.from_numpy(out).copy_(flat)

    def backward(self, g: Any, arrays: Sequence[Any], out: Any) -> None:
        """Compute the gradients of all arguments that are floats, as vectors."""
        tensors, _ = self._enter([np.broadcast_to(a, (len(g), *a.shape[1:])) for a in arrays], len(g))
        asked = [tensors[k].requires_grad_() for k in self.floats]
        found = self._differentiate(tensors, [0] * len(tensors), asked, g)
        torch.from_numpy(out).copy_(self._flat(found, len(g)))

    def weight_gradient(self, g: Any, arrays: Sequence[Any], number: int) -> Any:
        """Compute the gradient of a parameter, of all rows together; all are computed at once, and given one by one."""
        given = [g, *arrays, *(p.array for p in self.parameters)]
        before = self._kept[0]
        if len(before) != len(given) or not all(map(np.array_equal, before, given)):
            asked = [p.tensor for p in self.parameters if p.trainable]
            found = iter(self._differentiate(*self._enter(arrays, len(g)), asked, g))
            grads = [next(found) if p.trainable else torch.zeros(()) for p in self.parameters]
            self._kept = [np.array(x) for x in given], grads
        return self._kept[1][number].numpy()

    def _sees_batches(self, rows: Sequence[torch.Tensor]) -> bool:
        """Whether the body, given several rows, or one, gives what it gives for each on its own."""
        one_by_one = [self._function(*(x[k] for x in rows)) for k in range(ROWS)]
        for n in (1, ROWS):
            try:
                found = self._function(*(x[:n] for x in rows))
            except (RuntimeError, ValueError, IndexError, TypeError):
                return False
            if not _are_close(found, [torch.stack(ys[:n]) for ys in zip(*one_by_one, strict=True)]):
                return False
        return True

    def _map(self, tensors: Sequence[torch.Tensor], in_dims: Sequence[int | None]) -> Sequence[torch.Tensor]:
        """The outputs of all rows."""
        if self._takes_batches:
            n_rows = max(len(x) for x, dim in zip(tensors, in_dims, strict=True) if dim == 0)
            wide = zip(tensors, in_dims, strict=True)
            return self._function(*(x if dim == 0 else x.expand(n_rows, *x.shape) for x, dim in wide))
        mapped = torch.func.vmap(lambda *xs: tuple(self._function(*xs)), tuple(in_dims), randomness="different")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found: Sequence[torch.Tensor] = mapped(*tensors)
        return found

    def _enter(self, arrays: Sequence[Any], n_rows: int) -> tuple[list[torch.Tensor], list[int | None]]:
        """Arrays (rows, *shape) as tensors, and the axis of their rows; what all rows share has none."""
        tensors, in_dims = [], list[int | None]()
        for array in arrays:
            is_shared = len(array) < n_rows
            tensor = torch.from_numpy(np.require(array[0] if is_shared else array, requirements=("C", "W")))
            tensors.append(tensor if tensor.is_floating_point() else tensor.long())
            in_dims.append(None if is_shared else 0)
        if all(dim is None for dim in in_dims):  # one row, or no argument at all
            tensors, in_dims = [*tensors[:-1], tensors[-1][None]], [*in_dims[:-1], 0]
        return tensors, in_dims

    def _differentiate(
        self, tensors: Sequence[Any], in_dims: Sequence[int | None], asked: Sequence[torch.Tensor], g: Any
    ) -> list[torch.Tensor]:
        with torch.enable_grad():
            flat = self._flat(self._map(tensors, in_dims), len(g))
        if not flat.requires_grad:
            return [torch.zeros_like(x) for x in asked]
        given = torch.from_numpy(np.ascontiguousarray(g)).to(flat.dtype)
        return list(torch.autograd.grad(flat, asked, given, allow_unused=True, materialize_grads=True))

    @staticmethod
    def _flat(found: Sequence[torch.Tensor], n_rows: int) -> torch.Tensor:
        return torch.cat([y.reshape(n_rows, -1) for y in found], 1)


def _are_close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Whether two lists of outputs are equal up to rounding."""
    pairs = list(zip(found, expected, strict=False))
    return len(found) == len(expected) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in pairs
    )


def _pullback(g: Any, out: Any, *args: Any, body: Body) -> tuple[Any, ...]:
    """The gradients of all arguments of a call: values, and then parameters."""
    values = args[: len(body.shapes)]
    gradients: list[Any] = [None] * len(values)
    if body.floats:
        flat = BACKWARD(g, *values, body=body)
        parts = _parts(flat, [body.shapes[k] for k in body.floats])
        for k, part in zip(body.floats, parts, strict=True):
            gradients[k] = part
    return *gradients, *(WEIGHTS(g, *values, body=body, number=k) for k in range(len(body.parameters)))


def _add_weights(xp: Any, g: Any, *arrays: Any, out: Any, body: Body, number: int) -> None:
    out[0] += body.weight_gradient(g, arrays, number)


def _weights_by_row(xp: Any, g: Any, *arrays: Any, out: Any, body: Body, number: int) -> None:
    for k in range(len(out)):
        own = [a[k : k + 1] if len(a) > 1 else a for a in arrays]
        out[k] = body.weight_gradient(g[k : k + 1], own, number)


FORWARD = Op(
    "torch",
    shape=lambda *shapes, body: (body.size,),
    kernel=lambda xp, *arrays, out, body: body.forward(arrays[: len(body.shapes)], out),
    pullback=_pullback,
    told=lambda body: f"is run by torch: {body.why}",
)
BACKWARD = Op(
    "torch_gradient",
    shape=lambda *shapes, body: (sum(math.prod(body.shapes[k]) for k in body.floats),),
    kernel=lambda xp, g, *arrays, out, body: body.backward(g, arrays, out),
)
WEIGHTS = Op(
    "torch_weight_gradient",
    shape=lambda *shapes, body, number: body.parameters[number].shape,
    kernel=_weights_by_row,
    row_sum=_add_weights,
)


def run_by_torch(
    name: str,
    function: Callable[..., Any],
    given: Sequence[tuple[Any, torch.dtype]],
    reads: Sequence[TensorParameter],
    why: str,
) -> list[Any]:
    """Record a call of a function that torch runs; its outputs, in order.

    Args:
        name: of the cell.
        function: gives a list of tensors.
        given: the values that it is given, and the dtype of each.
        reads: the parameters that it reads beside.
        why: torch runs it.

    Raises:
        GraphError: torch cannot run it on a batch; the message is torch's.
    """
    values = [value for value, _ in given]
    examples = [torch.zeros(shape_of(value), dtype=dtype) for value, dtype in given]
    try:
        body = Body(name, function, examples, reads, why)
    except (RuntimeError, ValueError, IndexError) as error:
        raise GraphError(f"torch cannot run it on a batch: {str(error).splitlines()[0]}") from error
    return _parts(FORWARD(*values, *reads, body=body), body.outputs)


def _parts(flat: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The values of these shapes that lie one after the other in a vector."""
    found, first = [], 0
    for shape in shapes:
        size = math.prod(shape)
        found.append(ops.reshape(slice_(flat, index=slice(first, first + size)), shape))
        first += size
    return found
