"""Cells that torch itself runs: a body with unsupported ops becomes one op, whose kernel calls the body on a batch.

The op takes all values that the body reads, and returns all its outputs as one vector per node. The analysis of the
body, see `autobatch.torch.analysis`, decides how the kernel passes the rows of a batch. In training the call is kept,
and torch's own autograd differentiates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate, count, pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from autobatch import ops
from autobatch.errors import GraphError
from autobatch.ir.program import CellProgram, Instruction, Weight
from autobatch.ops.define import Op
from autobatch.ops.elementwise import stop_gradient
from autobatch.ops.operators import STAGE
from autobatch.ops.randomness import Randomness
from autobatch.ops.shaping import slice_, stand_for
from autobatch.params.parameter import Parameter
from autobatch.torch.analysis import Analysis, Kind, Way, mapped
from autobatch.torch.asking import Respelling
from autobatch.torch.calls import OPEN, TICKET, Tape
from autobatch.torch.kinds import (
    check_kind,
    copy_whole,
    from_floats,
    is_float,
    name_of,
    shape_within,
    to_floats,
)
from autobatch.torch.memory import to_host, to_tensor
from autobatch.torch.structures import tensors_in

NUMBERS = count()
ONCE = (
    "its derivative is needed inside the program, as for second derivatives, but torch runs it, or one of its ops "
    "(see explain), and differentiates only once, after the run; write it with ops that autobatch supports."
)


class Body:
    """A function of tensors that torch runs.

    Args:
        name: the name of the cell.
        function: a function of tensors that returns tensors, in any structure.
        kinds: the shapes and dtypes of its arguments, of one node, and whether these have gradients.
        model: the dtype of the model.
        why: the reason why torch runs it, for `explain`.

    Attributes:
        model: the dtype of the model.
        analysis: the analysis of the function.
        parameters: the parameters that it reads besides its arguments.
        shapes: the shapes of the arguments when stored as floats of the model.
        floats: the places of the arguments with gradients.
        constants: the places of arguments that no result depends on, or that torch has no gradient for.
        kinds: the shape and the dtype of each output.
        outputs: the shape of each output when stored as floats.
        size: the number of floats of all outputs.

    Raises:
        GraphError: torch cannot run the function, or a value cannot represent its result.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], kinds: Sequence[Kind], model: torch.dtype, why: str
    ) -> None:
        self.name, self.why, self._number = name, why, next(NUMBERS)
        self._function, self.model, self._dtypes = function, model, [kind.dtype for kind in kinds]
        self.analysis = analysis = Analysis(function, kinds)
        self.parameters = [*analysis.reads.values()]
        # Without arguments, nothing tells a mapped or whole call the number of rows.
        self._way = analysis.way if kinds else Way.ONE_BY_ONE
        self.constants = {k for k, kind in enumerate(kinds) if kind.has_gradient and not analysis.kinds[k].has_gradient}
        self.floats = [k for k, kind in enumerate(analysis.kinds) if kind.has_gradient]
        self.shapes = [shape_within(kind.shape, kind.dtype) for kind in kinds]
        self.kinds = [(tuple(y.shape), y.dtype) for y in tensors_in(analysis.result)]
        for y in tensors_in(analysis.result):
            check_kind(y.dtype, model)
            if y.layout is not torch.strided:
                raise GraphError(f"its result must be a dense tensor, got layout {y.layout}; call .to_dense().")
        self.outputs = [shape_within(*kind) for kind in self.kinds]
        self.size = sum(map(math.prod, self.outputs))

    def __repr__(self) -> str:
        """Return the name and a unique number, because programs compare ops by their text."""
        return f"{self.name} {self._number}"

    @property
    def draws(self) -> bool:
        return self.analysis.draws

    def needed_by(self, part: slice) -> list[int]:
        """Return the positions of the arguments, including parameters, to which gradients of an output flow.

        Args:
            part: the part of the vector of all outputs that holds this output; for other parts the result is empty.
        """
        numbers = {id(parameter): len(self.shapes) + n for n, parameter in enumerate(self.parameters)}
        ends = accumulate(map(math.prod, self.outputs), initial=0)
        needs = [
            need
            for need, ends in zip(self.analysis.needs, pairwise(ends), strict=True)
            if ends == (part.start, part.stop)
        ]
        arguments = {k for need in needs for k in need.arguments}
        return [*arguments, *(numbers[parameter] for need in needs for parameter in need.parameters)]

    @property
    def weights(self) -> list[Tensor]:
        """Return the tensors of the trainable parameters."""
        return [p.tensor for p in self.parameters if p.trainable]

    def of_rows(self, tensors: Sequence[Tensor], n_rows: int) -> Sequence[Tensor]:
        """Compute the outputs of all rows, as floats of the model; ints and bools keep their dtypes."""
        if self._way is Way.WHOLE:
            return self._of_row(*tensors)
        if self._way is Way.MAPPED:
            try:
                return self._mapped(tensors)
            except RuntimeError:  # a rule, such as that of group_norm, rejects the memory layout of the rows
                self._way = Way.ONE_BY_ONE
        by_row = [self._of_row(*(x[k] for x in tensors)) for k in range(n_rows)]
        return [torch.stack(ys) for ys in zip(*by_row, strict=True)]

    def _mapped(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        respelling = Respelling() if self.analysis.is_respelled else nullcontext()
        attending = sdpa_kernel(SDPBackend.MATH) if self.analysis.attends else nullcontext()
        with respelling, attending:
            found: Sequence[Tensor] = mapped(self._of_row, tensors)
        return found

    def _of_row(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Compute one row, from and to tensors stored as floats."""
        given = (from_floats(x, dtype) for x, dtype in zip(tensors, self._dtypes, strict=True))
        return tuple(to_floats(y, self.model) for y in tensors_in(self._function(*given)))

    def forward(self, arrays: Sequence[Any], out: Any) -> None:
        """Compute the outputs of all rows: vectors, each followed by its ticket, a call on the tape and a row of it."""
        # The other arrays are parameters, which the body reads itself, and the number of the draw.
        tape, arrays, out = OPEN.tape, arrays[: len(self.shapes)], to_tensor(out)
        if tape is None:
            with torch.no_grad():
                found = self.of_rows(self._enter_all(arrays, out), len(out))
        else:  # copy, because the backend may reuse the memory of the arguments
            copies = (x.copy() if hasattr(x, "copy") else x for x in arrays)
            found = tape.add(self, self._enter_all(copies, out), out[:, self.size :])
        for y, place, shape in zip(found, _columns(out, self.outputs), self.outputs, strict=False):
            if y.shape[1:] != shape:
                raise GraphError(
                    f"the result of {self.name} must have shape {shape}, as in the analysis before the run, "
                    f"got {tuple(y.shape[1:])}; compute it outside cells."
                )
            flat = y.detach().reshape(place.shape)
            if is_float(flat.dtype):
                place.copy_(flat)
            else:
                copy_whole(flat, place)

    def _enter_all(self, arrays: Iterable[Any], out: Tensor) -> list[Tensor]:
        """Convert the arguments to tensors; ints and bools, which may be stored as floats, to their own dtypes."""
        tensors = [_enter(array, len(out), out.device) for array in arrays]
        return [x if is_float(dtype) else x.to(dtype) for x, dtype in zip(tensors, self._dtypes, strict=True)]

    def backward(self, g: Any, tickets: Any, out: Any) -> None:
        """Compute the gradients of the arguments in `floats`, as vectors."""
        out = to_tensor(out)
        places = _columns(out, [self.shapes[k] for k in self.floats])
        _tape().inputs(self, _enter(g, len(out), out.device), to_host(tickets), places)

    def note_weight(self, g: Any, tickets: Any, number: int) -> None:
        """Note the gradient of a parameter, summed over all rows, on the tape of the run."""
        if self.parameters[number].trainable:
            # Calls number the trainable parameters only.
            at = sum(p.trainable for p in self.parameters[:number])
            _tape().weights(self, _enter(g, len(tickets), self.weights[at].device), to_host(tickets), at)


def _enter(array: Any, n_rows: int, device: torch.device) -> Tensor:
    """Convert an array (rows, *shape) to a tensor, sharing memory if possible; repeat a single row or number."""
    if isinstance(array, (int, float, np.generic)) or type(array) is np.ndarray:
        array = np.atleast_1d(array)
        # Torch warns of arrays that cannot be written to, such as broadcast constants.
        if not array.flags.writeable:
            array = array.copy()
    x = to_tensor(array).to(device)
    if len(x) != n_rows:
        x = x.expand(n_rows, *x.shape[1:]).clone()
    return x if x.numel() else x.new_empty(x.shape)  # with torch's strides for empty tensors


def _columns(whole: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Split a matrix into the columns of consecutive parts of these shapes; the result shares its memory."""
    ends = accumulate(map(math.prod, shapes), initial=0)
    return [whole[:, first:end] for first, end in pairwise(ends)]


def _tape() -> Tape:
    assert OPEN.tape is not None, "only training runs are differentiated"
    return OPEN.tape


def _draw(xp: Any, *arrays: Any, out: Any, body: Body, site: int, random: Randomness) -> None:
    """Run a body that draws random numbers: seed torch's generator with a number of ours, and restore it afterwards."""
    device = to_tensor(out).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else ()):
        torch.manual_seed(int(random.uniform(xp, arrays[-1], site, ())[0]))
        body.forward(arrays, out)


def _pullback(g: Any, y: Any, *args: Any, body: Body, site: int = 0) -> tuple[Any, ...]:
    """Return the gradients of all arguments of a call: values, parameters, and the draw number, which has none."""
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
    """Note the gradient of a parameter, and write zeros: the rows of `out` are summed later."""
    out[...] = 0
    body.note_weight(g, tickets, number)


FORWARD = Op(
    "torch",
    shape=lambda *shapes, body: (body.size + TICKET,),
    kernel=lambda xp, *arrays, out, body: body.forward(arrays, out),
    pullback=_pullback,
    whole=True,
    note=lambda body: body.why,
    once=ONCE,
)
DRAWING = Op(
    "torch",
    shape=lambda *shapes, body, site: (body.size + TICKET,),
    kernel=_draw,
    pullback=_pullback,
    random=True,
    whole=True,
    note=lambda body, site: body.why,
    once=ONCE,
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
    row_sum=lambda xp, g, tickets, out, body, number: body.note_weight(g[0], tickets[0], number),
)
"""The gradient of a parameter; adds zeros, because the run's calls keep the gradient (`autobatch.torch.calls`)."""


class Reads(NamedTuple):
    """The parameters that a program reads, and whether it draws random numbers.

    Attributes:
        parameters: the `id`s of all parameters that it reads.
        by_others: those whose gradients autobatch computes: code other than a torch body reads them, or they are
            arguments of one.
        draws: whether one of its ops draws random numbers.
    """

    parameters: frozenset[int]
    by_others: frozenset[int]
    draws: bool


_READS: WeakKeyDictionary[CellProgram, Reads] = WeakKeyDictionary()


def reads_of(program: CellProgram) -> Reads:
    """Return the reads and draws of a program, cached."""
    found = _READS.get(program)
    if found is None:
        parameters, by_others = map(frozenset, (map(id, program.parameters), map(id, _read_by_others(program))))
        sources = [var.source for var in program.vars]
        draws = any(isinstance(source, Instruction) and source.op.random for source in sources)
        found = _READS[program] = Reads(parameters, by_others, program.draws and draws)
    return found


def _read_by_others(program: CellProgram) -> Iterator[Parameter]:
    """Yield the parameters of a program that code other than a torch body reads, or that are arguments of one."""
    for var in program.vars:
        if isinstance(var.source, Instruction):
            is_torch = var.source.op in (FORWARD, DRAWING)
            args = var.source.args[: len(var.source.static["body"].shapes)] if is_torch else var.source.args
            read = [program.vars[arg].source for arg in args]
            yield from (source.parameter for source in read if isinstance(source, Weight))
    results = [program.vars[output].source for output in program.outputs]
    yield from (source.parameter for source in results if isinstance(source, Weight))


def record_call(body: Body, values: Sequence[Any]) -> list[Any]:
    """Record a call, on values of the program, of a function that torch runs; return its outputs in order."""
    values = [STAGE.current.wrap(x) for x in values]  # constants are evaluated when the mini-batch runs, too
    values = [stop_gradient(x) if k in body.constants else x for k, x in enumerate(values)]
    if body.draws:
        draw, site = STAGE.current.next_draw()
        found = _parts(DRAWING(*values, *body.parameters, draw, body=body, site=site), body.outputs)
    else:
        if body.analysis.may_draw:
            STAGE.current.note_draw()  # so that graphs recorded in eval() run after train()
        found = _parts(FORWARD(*values, *body.parameters, body=body), body.outputs)
    return [
        x if dtype is body.model else stand_for(STAGE.current.wrap(x), dtype=name_of(dtype))
        for x, (_, dtype) in zip(found, body.kinds, strict=True)
    ]


def _parts(flat: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Split a vector into consecutive values of these shapes."""
    found, first = [], 0
    for shape in shapes:
        size = math.prod(shape)
        found.append(ops.reshape(slice_(flat, index=slice(first, first + size)), shape))
        first += size
    return found
