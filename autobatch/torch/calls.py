"""Calls of bodies that torch runs, kept from forward to backward with the data of torch's own autograd.

A training run keeps each call, and writes the number of the call and of the row into the value of every node. The
backward stage and the weight stage read these to find the call that computed a row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from autobatch.torch.structures import on_tensors

Array = NDArray[Any]
TICKET = 2
"""The count of numbers after the outputs of a node: the number of its call, and its row there."""


class Function(Protocol):
    """The interface of a called function; see `autobatch.torch.opaque.Body`."""

    @property
    def floats(self) -> Sequence[int]:
        """Return the places of the arguments with gradients."""

    @property
    def draws(self) -> bool:
        """Return whether it draws random numbers."""

    @property
    def weights(self) -> list[torch.Tensor]:
        """Return the tensors of the trainable parameters."""

    def of_rows(self, tensors: Sequence[torch.Tensor], n_rows: int) -> Sequence[torch.Tensor]:
        """Compute the outputs of all rows."""


class Call:
    """A call on some rows, which can be differentiated.

    Args:
        function: the called function.
        tensors: the arguments of all rows.
        n_rows: the number of rows.

    Attributes:
        outputs: the outputs of all rows.
        is_noted: for each row, whether its part of the gradients of parameters has been computed.
        is_left_out: by the number of a parameter, for each row, whether its part was not finite and was left out.
    """

    def __init__(self, function: Function, tensors: Sequence[torch.Tensor], n_rows: int) -> None:
        self.tensors = tensors
        self._inputs = [tensors[k].requires_grad_() for k in function.floats]
        instead = {id(x): (x, x.detach().requires_grad_()) for x in function.weights if x._backward_hooks}
        self._weights = [instead[id(x)][1] if id(x) in instead else x for x in function.weights]
        with torch.enable_grad(), _Instead(instead) if instead else nullcontext():
            self.outputs = function.of_rows(tensors, n_rows)
        self.is_noted = np.zeros(n_rows, bool)
        self.is_left_out: dict[int, Array] = {}

    def differentiate(
        self, gradient: torch.Tensor, rows: Array, inputs: bool, weights: bool
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Differentiate some rows; if these are all rows, torch's saved data are freed.

        Args:
            gradient: the gradient of the outputs of these rows, a vector per row.
            rows: the numbers of the rows.
            inputs, weights: whether to compute the gradients of the arguments, and of the parameters.

        Returns:
            The gradients of the arguments, and of the parameters; None for those that are zero.
        """
        n_rows = len(self.is_noted)
        is_whole = len(rows) == n_rows and np.array_equal(rows, np.arange(n_rows))
        if not is_whole:
            # Torch's graph is of all rows: those that are not asked for get gradient 0.
            given = gradient.new_zeros(n_rows, gradient.shape[1])
            gradient = given.index_copy_(0, torch.from_numpy(rows).to(gradient.device), gradient)
        outputs, seeds, first = [], [], 0
        for output in self.outputs:
            end = first + output[0].numel()
            if output.requires_grad:
                outputs.append(output)
                seeds.append(gradient[:, first:end].reshape(output.shape))
            first = end
        asked = [*(self._inputs if inputs else ()), *(self._weights if weights else ())]
        found: list[Any] = [None] * len(asked)
        if outputs and asked:
            # Another call follows for the other rows, or for the arguments if only the parameters are asked for now.
            is_kept = not is_whole or bool(self._inputs and not inputs)
            found = list(torch.autograd.grad(outputs, asked, seeds, allow_unused=True, retain_graph=is_kept))
        if weights:
            self.is_noted[rows] = True
        n_inputs = len(self._inputs) if inputs else 0
        own = found[:n_inputs] if is_whole else [None if x is None else x[rows] for x in found[:n_inputs]]
        # Torch may return the given gradient itself, or a view of it, but the backend reuses its memory.
        memory = gradient.untyped_storage().data_ptr()
        of_weights = [x.clone() if x is not None and _lies_at(x, memory) else x for x in found[n_inputs:]]
        return own, of_weights


class _Instead(TorchFunctionMode):
    """The mode that replaces parameters with hooks by other tensors, because their hooks run once, after backward.

    Args:
        instead: the parameter and its replacement, by the `id` of the parameter.
    """

    def __init__(self, instead: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = on_tensors(self._other, args), on_tensors(self._other, kwargs or {})
        return function(*args, **kwargs)

    def _other(self, x: torch.Tensor) -> torch.Tensor:
        return self._instead.get(id(x), (x, x))[1]


class Tape:
    """The calls of a run, in order, for the backward pass."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._totals: dict[Function, dict[int, Total]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Make this thread's calls use this tape within the context."""
        before, OPEN.tape = OPEN.tape, self
        try:
            yield
        finally:
            OPEN.tape = before

    def add(self, function: Function, tensors: Sequence[torch.Tensor], tickets: torch.Tensor) -> Sequence[torch.Tensor]:
        """Call a function and keep the call; return the outputs, and write the tickets of all rows."""
        call = Call(function, tensors, len(tickets))
        tickets[:, 0], tickets[:, 1] = len(self._calls), torch.arange(len(tickets), device=tickets.device)
        self._calls.append(call)
        return call.outputs

    def inputs(self, function: Function, gradient: torch.Tensor, tickets: Array, out: Sequence[torch.Tensor]) -> None:
        """Compute the gradients of the arguments of some rows, and note those of the parameters.

        Args:
            function: the function that computed these rows.
            gradient: the gradient of the outputs of these rows, a vector per row.
            tickets: the tickets of these rows.
            out: for each argument with a gradient, the place of its gradient.
        """
        for call, rows, given in self._find(tickets):
            inputs, weights = call.differentiate(gradient[given], rows, True, not call.is_noted[rows].any())
            for found, place in zip(inputs, out, strict=True):
                place[given] = 0 if found is None else found.reshape(len(rows), -1)
            self._note(function, call, rows, weights)

    def weights(self, function: Function, gradient: torch.Tensor, tickets: Array, number: int) -> None:
        """Note the gradient of a parameter over some rows, unless it has been noted with that of the arguments.

        Rows that the loss does not depend on have zero gradients, and are noted with the others of their call. If their
        derivatives are infinite, the product with zero is not a number; then only the given rows are differentiated.
        """
        for call, rows, given in self._find(tickets):
            left = np.flatnonzero(~call.is_noted[rows])
            if left.size:
                part = gradient[given][torch.from_numpy(left)]
                self._note(function, call, rows[left], call.differentiate(part, rows[left], False, True)[1])
            left = np.flatnonzero(call.is_left_out[number][rows]) if number in call.is_left_out else left[:0]
            if left.size:
                call.is_left_out[number][rows] = False
                part, again = gradient[given][torch.from_numpy(left)], torch.from_numpy(rows[left])
                alone = Call(function, [x.detach()[again] for x in call.tensors], left.size)
                self._add(function, number, alone.differentiate(part, np.arange(left.size), False, True)[1][number])

    def gradients(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the parameters of bodies and their gradients; a parameter of several bodies occurs several times."""
        for function, totals in self._totals.items():
            for number, total in totals.items():
                yield function.weights[number], total.value

    def _note(self, function: Function, call: Call, rows: Array, weights: Sequence[torch.Tensor | None]) -> None:
        """Add the gradients of parameters over some rows of a call; leave out those that are not finite for now."""
        for number, found in enumerate(weights):
            # A random function would draw other numbers if it was called again.
            if found is None or function.draws or found.sum().isfinite():
                self._add(function, number, found)
            else:
                call.is_left_out.setdefault(number, np.zeros(len(call.is_noted), bool))[rows] = True

    def _add(self, function: Function, number: int, found: torch.Tensor | None) -> None:
        totals = self._totals.setdefault(function, {})
        if found is not None and number in totals:
            totals[number].add(found)
        elif found is not None:
            totals[number] = Total(found)

    def _find(self, tickets: Array) -> Iterator[tuple[Call, Array, slice]]:
        """Yield, for each call of the rows, the call, the numbers of the rows in it, and their slice of `tickets`."""
        numbers, rows = tickets.astype(np.int64).T
        # A call ends at a row whose successor has the number of another call.
        ends = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for first, end in zip([0, *ends], ends, strict=False):
            if first < end:
                yield self._calls[numbers[first]], np.ascontiguousarray(rows[first:end]), slice(first, end)


class Total:
    """A sum of gradients: the first tensor itself until a second is added, then a tensor in memory of its own."""

    def __init__(self, first: torch.Tensor) -> None:
        self.value, self._is_own = first, False

    def add(self, other: torch.Tensor) -> None:
        if self._is_own:
            self.value.add_(other)
        else:
            self.value, self._is_own = self.value + other, True


def _lies_at(x: torch.Tensor, memory: int) -> bool:
    return x.untyped_storage().data_ptr() == memory


class _Open(threading.local):
    """The tape of this thread; None in inference."""

    tape: Tape | None = None


OPEN = _Open()
