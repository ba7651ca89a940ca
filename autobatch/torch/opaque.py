"""Cells that torch itself runs: a body with ops that we lack becomes one op, whose kernel calls the body on a batch.

The op takes all values that the body reads, and gives all its outputs as one vector per node. Its kernel gives the body
the whole batch, if drawn numbers show that it does to many rows what it does to each; else the body is mapped over the
rows by `torch.func.vmap`. In training the call is kept, and torch's own autograd differentiates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from autobatch import ops
from autobatch.errors import GraphError
from autobatch.ir.program import CellProgram, Instruction, Weight
from autobatch.ops.define import Op, shape_of
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import Randomness
from autobatch.ops.shaping import slice_
from autobatch.params.parameter import Parameter
from autobatch.torch.calls import OPEN, TICKET, Calls
from autobatch.torch.parameters import TensorParameter

ROWS = 3  # of the batch on which a body is tried


class Body:
    """A function of tensors that torch runs.

    Args:
        name: of the cell.
        function: gives a list of tensors.
        examples: arguments of one node, of the shapes and dtypes that it takes.
        parameters: that it reads beside.
        why: torch runs it, for `explain`.

    Attributes:
        shapes: of the arguments; floats: the places of those that are floats.
        outputs: the shape of each output; size: how many numbers all have.
        draws: whether it draws random numbers.
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
        draw = torch.Generator().manual_seed(0)
        shapes = [(ROWS, *shape) for shape in self.shapes]
        rows = [
            torch.randn(shape, generator=draw, dtype=x.dtype) if x.is_floating_point() else x.expand(shape)
            for x, shape in zip(examples, shapes, strict=True)
        ]
        with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=()):
            before = torch.get_rng_state()
            self._takes_batches = self._sees_batches(rows)
            found = self.of_rows(rows)
            self.draws = not torch.equal(before, torch.get_rng_state())
        for y in found:
            if not y.is_floating_point():
                raise GraphError(f"it returns a tensor of {y.dtype}; a cell that torch runs returns floats.")
        self.outputs = [tuple(y.shape[1:]) for y in found]
        self.size = sum(map(math.prod, self.outputs))

    def __repr__(self) -> str:
        return self.name

    @property
    def weights(self) -> list[torch.Tensor]:
        """The parameters that have gradients."""
        return [p.tensor for p in self.parameters if p.trainable]

    def of_rows(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The outputs of all rows."""
        if self._takes_batches:
            return self._function(*tensors)
        mapped = torch.func.vmap(lambda *xs: tuple(self._function(*xs)), randomness="different")
        advise = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
        advise(False)  # at every call, that torch should map an op in another way
        try:
            found: Sequence[torch.Tensor] = mapped(*tensors)
        finally:
            advise(True)
        return found

    def forward(self, arrays: Sequence[Any], out: Any) -> None:
        """Compute the outputs of all rows, as vectors with tickets behind them."""
        calls, arrays = OPEN.calls, arrays[: len(self.shapes)]
        if calls is None:
            with torch.no_grad():
                found = self.of_rows(self._enter_all(arrays, len(out)))
        else:  # from copies, as the backend may use the memory of the arguments again
            found = calls.add(self, self._enter_all(map(np.array, arrays), len(out)), out[:, self.size :])
        for y, place in zip(found, _columns(out, self.outputs), strict=False):
            place.copy_(y.detach().reshape(place.shape))

    def _enter_all(self, arrays: Iterable[Any], n_rows: int) -> list[torch.Tensor]:
        """The arguments as tensors; ints may lie among floats."""
        tensors = [_enter(array, n_rows) for array in arrays]
        return [x if k in self.floats else x.long() for k, x in enumerate(tensors)]

    def backward(self, g: Any, tickets: Any, out: Any) -> None:
        """Compute the gradients of all arguments that are floats, as vectors."""
        _kept().inputs(self, _enter(g, len(out)), tickets, _columns(out, [self.shapes[k] for k in self.floats]))

    def note_weight(self, g: Any, tickets: Any, number: int) -> None:
        """Note the gradient of a parameter, of all rows together, with the calls of the run."""
        if self.parameters[number].trainable:
            at = sum(p.trainable for p in self.parameters[:number])
            _kept().weights(self, _enter(g, len(tickets)), tickets, at)

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


def _enter(array: Any, n_rows: int) -> torch.Tensor:
    """An array (rows, *shape) as a tensor, in the same memory where it can be; a single row stands for all."""
    if len(array) != n_rows or not array.flags.writeable:
        array = np.array(np.broadcast_to(array, (n_rows, *array.shape[1:])))
    return torch.from_numpy(array)


def _columns(out: Any, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """The columns of a matrix in which the rows of these shapes lie, one after the other."""
    ends = accumulate(map(math.prod, shapes), initial=0)
    whole = torch.from_numpy(out)
    return [whole[:, first:end] for first, end in pairwise(ends)]


def _kept() -> Calls:
    assert OPEN.calls is not None, "what is differentiated has run in training"
    return OPEN.calls


def _are_close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Whether two lists of outputs are equal up to rounding."""
    pairs = list(zip(found, expected, strict=False))
    return len(found) == len(expected) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.allclose(x, y, rtol=1e-4, atol=1e-6) for x, y in pairs
    )


def _draw(xp: Any, *arrays: Any, out: Any, body: Body, site: int, random: Randomness) -> None:
    """Run a body that draws: torch's generator starts from a number of ours, and is afterwards as it was before."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(int(random.uniform(np, arrays[-1], site, ())[0]))
        body.forward(arrays, out)


def _pullback(g: Any, y: Any, *args: Any, body: Body, site: int = 0) -> tuple[Any, ...]:
    """The gradients of all arguments of a call: values, parameters, and the number of the draw, which has none."""
    tickets = slice_(y, index=slice(body.size, body.size + TICKET))
    gradients: list[Any] = [None] * len(body.shapes)
    if body.floats:
        flat = BACKWARD(g, tickets, body=body)
        parts = _parts(flat, [body.shapes[k] for k in body.floats])
        for k, part in zip(body.floats, parts, strict=True):
            gradients[k] = part
    weights = [WEIGHTS(g, tickets, body=body, number=k) for k in range(len(body.parameters))]
    return *gradients, *weights, *([None] * (len(args) - len(gradients) - len(weights)))


def _note_weight(xp: Any, g: Any, tickets: Any, out: Any, body: Body, number: int) -> None:
    """The gradient of a parameter where its rows are added up later."""
    out[...] = 0
    body.note_weight(g, tickets, number)


FORWARD = Op(
    "torch",
    shape=lambda *shapes, body: (body.size + TICKET,),
    kernel=lambda xp, *arrays, out, body: body.forward(arrays, out),
    pullback=_pullback,
    whole=True,
    told=lambda body: body.why,
)
DRAWING = Op(
    "torch",
    shape=lambda *shapes, body, site: (body.size + TICKET,),
    kernel=_draw,
    pullback=_pullback,
    random=True,
    whole=True,
    told=lambda body, site: body.why,
)
BACKWARD = Op(
    "torch_gradient",
    shape=lambda *shapes, body: (sum(math.prod(body.shapes[k]) for k in body.floats),),
    kernel=lambda xp, g, tickets, out, body: body.backward(g, tickets, out),
)
WEIGHTS = Op(
    "torch_weight_gradient",
    shape=lambda *shapes, body, number: body.parameters[number].shape,
    kernel=_note_weight,
    row_sum=lambda xp, g, tickets, out, body, number: body.note_weight(g, tickets, number),
)
"""Adds nothing: the calls of the run keep the gradient (`autobatch.torch.calls`), which may be large."""


def read_by_others(program: CellProgram) -> Iterator[Parameter]:
    """The parameters of a program that something else than a body of torch reads."""
    for var in program.vars:
        if isinstance(var.source, Instruction) and var.source.op not in (FORWARD, DRAWING):
            read = [program.vars[arg].source for arg in var.source.args]
            yield from (source.parameter for source in read if isinstance(source, Weight))
    results = [program.vars[output].source for output in program.outputs]
    yield from (source.parameter for source in results if isinstance(source, Weight))


def try_on_rows(
    name: str,
    function: Callable[..., Any],
    given: Sequence[tuple[Any, torch.dtype]],
    reads: Sequence[TensorParameter],
    why: str,
) -> Body:
    """Make a body of a function that torch runs.

    Args:
        name: of the cell, or of an op in it.
        function: gives a list of tensors.
        given: the values that it is given, and the dtype of each.
        reads: the parameters that it reads beside.
        why: torch runs it.

    Raises:
        GraphError: torch cannot run it on a batch; the message is torch's.
    """
    examples = [torch.zeros(shape_of(value), dtype=dtype) for value, dtype in given]
    try:
        return Body(name, function, examples, reads, why)
    except (RuntimeError, ValueError, IndexError) as error:
        raise GraphError(f"torch cannot run it on a batch: {str(error).splitlines()[0]}") from error


def record_call(body: Body, values: Sequence[Any]) -> list[Any]:
    """Record a call of a function that torch runs, of values of the program; its outputs, in order."""
    if body.draws:
        draw, site = STAGE.current.next_draw()
        return _parts(DRAWING(*values, *body.parameters, draw, body=body, site=site), body.outputs)
    return _parts(FORWARD(*values, *body.parameters, body=body), body.outputs)


def _parts(flat: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The values of these shapes that lie one after the other in a vector."""
    found, first = [], 0
    for shape in shapes:
        size = math.prod(shape)
        found.append(ops.reshape(slice_(flat, index=slice(first, first + size)), shape))
        first += size
    return found
