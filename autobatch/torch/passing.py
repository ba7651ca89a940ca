"""Mini-batches in torch's graph: the `grad_fn` of outputs runs our backward stages, and gradients have one too.

The gradients of a mini-batch are differentiated by a second function, which is made on first use. It runs the instances
once more, and computes the derivative of their outputs along a direction of parameters and inputs. The gradient of this
derivative, for the same gradients of the outputs, is the product of the Hessian and the direction. It is a mini-batch
of the same kind, so derivatives of any order exist.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from autobatch.backends.base import RowReader, Run
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.engine.results import InputGradients, join_columns
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.params.known import ParameterState
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.plan.budget import Part
from autobatch.system.locks import run_lock
from autobatch.torch.calls import Total
from autobatch.torch.entering import TensorInputs
from autobatch.torch.flow import Reaching
from autobatch.torch.memory import to_array, to_tensor
from autobatch.torch.modules import TorchModule
from autobatch.torch.on_device import reads_in
from autobatch.torch.parameters import Tangent, TensorParameter
from autobatch.trace.record import MiniBatch, Recorder

OfOutputs: TypeAlias = Mapping[int, torch.Tensor]
"""The gradients of outputs, by slot."""
Held: TypeAlias = Sequence[tuple[TensorParameter, torch.Tensor]]
"""Parameters, and the numbers to set them to."""


class Runner(Protocol):
    """The engine of mini-batches; see `autobatch.torch.batched.TorchBatched`."""

    @property
    def recorder(self) -> Recorder:
        """Return the recorder of instances."""

    @property
    def reaching(self) -> Reaching:
        """Return the finder of the dependencies of results."""

    @property
    def parameters(self) -> ParameterState:
        """Return the parameters of the module."""

    def refresh_parameters(self) -> ParameterState:
        """Look up the parameters of the module."""

    def on_device(self) -> AbstractContextManager[None]:
        """Return the context of work on the device."""

    def start(self, step: Step, part: Part, instances: slice, draw: tuple[int, int], *, to: Store | None = HOST) -> Run:
        """Run a part forward, and copy its outputs to the memory `to`; None for no copies."""

    def backward(
        self,
        step: Step,
        run: Run,
        seeds: Mapping[int, NDArray[Any]],
        out: dict[str, Gradient] | None,
        reader: RowReader | None = None,
        totals: dict[str, Total] | None = None,
    ) -> dict[str, Gradient]:
        """Differentiate the run of a part, within its context."""

    def draw_of(self, step: Step) -> tuple[int, int]:
        """Return the seed and the number on which random numbers of a step depend."""

    def along(
        self, passing: Passing, gradients: OfOutputs, directions: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Differentiate gradients; see `autobatch.torch.batched.TorchBatched`."""


class Passing:
    """A mini-batch that has run forward, until it runs backward or its outputs are gone.

    Args:
        batched: the engine that runs it.
        step: the planned mini-batch.
        minibatch: the mini-batch as it was read.
        draw: the seed and the step number of another run; None for the current ones.
        held: parameters whose numbers are specific to this run, with these numbers.

    Attributes:
        instances: the instances as given.
        tensors: the tensors with gradients: first the parameters read, then tensors among the instances.
        columns: per slot, the values of all instances.
        dtype: the dtype of the module.
    """

    def __init__(
        self,
        batched: Runner,
        step: Step,
        minibatch: MiniBatch,
        draw: tuple[int, int] | None = None,
        held: Held = (),
    ) -> None:
        self._batched, self._step = batched, step
        trainable: dict[str, TensorParameter] = batched.parameters.trainable  # type: ignore[assignment]
        module = batched.recorder.module
        assert isinstance(minibatch.inputs, TensorInputs)
        assert isinstance(module, TorchModule)
        self.instances, self.held = minibatch.instances, held
        self.inputs, self._sparse, self.dtype = minibatch.inputs, module.sparse, module.float_dtype
        reads = reads_in(batched.recorder, step.graph)
        parameters = frozenset().union(*[of_type.parameters for of_type in reads])
        by_others = frozenset().union(*[of_type.by_others for of_type in reads])
        self.read = {name: p for name, p in trainable.items() if id(p) in parameters}
        if any(p.tensor._backward_hooks for p in self.read.values()):
            # Torch would call the hooks of parameters that no result depends on with None.
            used = batched.reaching.parameters(step.graph, step.cells, range(len(step.cells.slot_shapes)))
            self.read = {name: p for name, p in self.read.items() if id(p) in used}
        self.inputs.check_unchanged()
        self.tensors = [*[p.tensor for p in self.read.values()], *self.inputs.tensors]
        # Only torch computes gradients of these, so nothing of ours is added.
        self._of_torch = {name for name in self.read if id(self.read[name]) not in by_others}
        self.draw = draw or batched.draw_of(step)
        self._runs: list[tuple[Part, Run]] = []
        columns = []
        for part, instances in step.divided():
            run = batched.start(step, part, instances, self.draw, to=batched.parameters.store)
            columns.append(run.outputs)
            step.counts.append(run.counts())
            if len(step.parts) > 1:
                run.close()  # memory holds only one part at a time: each runs again before it is differentiated
                continue
            self._runs.append((part, run))
            weakref.finalize(self, run.close)
        self.columns = join_columns(columns)
        # The end of each part's rows in each column: [parts, slots].
        self._ends = np.cumsum([[len(column) for column in part] for part in columns], axis=0)
        of_module: dict[str, TensorParameter] = module.parameters()  # type: ignore[assignment]
        self._bound = [Bound(p) for p in of_module.values() if id(p) in parameters and not isinstance(p, Tangent)]

    def backward(self, gradients: Mapping[int, NDArray[Any]]) -> list[Any]:
        """Return the gradient of each of `tensors`, or None if no result with a gradient depends on it.

        A second call reruns the forward pass of the mini-batch.

        Args:
            gradients: the gradients of outputs, by slot.

        Raises:
            GraphError: a parameter has changed since the forward pass.
        """
        batched, step = self._batched, self._step
        with run_lock(), batched.on_device(), self._as_it_ran():
            found = {name: self._zeros(name, p) for name, p in batched.parameters.trainable.items()}
            totals: dict[str, Total] = {}
            read = InputGradients(self.inputs, batched.parameters.dtype)
            runs, self._runs = self._runs or self._run_again(), []
            firsts = np.zeros(len(self.columns), int)
            for (part, run), ends in zip(runs, self._ends, strict=True):
                seeds = {slot: gradient[firsts[slot] : ends[slot]] for slot, gradient in gradients.items()}
                firsts = ends
                with run:
                    batched.backward(step, run, seeds, found, totals=totals)
                read.add(part.plan, run)
                run.close()
            reaching = self._batched.reaching
            reached = reaching.parameters(step.graph, step.cells, gradients.keys())
            numbers = reaching.numbers(step.graph, self.inputs)
        grads = [
            self._gradient(name, found[name], totals.get(name)) if id(parameter) in reached else None
            for name, parameter in self.read.items()
        ]
        return [*grads, *self.inputs.split(read.flat, numbers)]

    def _run_again(self) -> Iterator[tuple[Part, Run]]:
        """Run the parts again, one at a time."""
        for part, instances in self._step.divided():
            yield part, self._batched.start(self._step, part, instances, self.draw, to=None)

    @contextmanager
    def _as_it_ran(self) -> Iterator[None]:
        """Bind parameters, within the context, to the tensors of this mini-batch, even if the module has changed.

        Raises:
            GraphError: the tensors have changed since the forward pass, or their places in the module are gone.
        """
        self._batched.refresh_parameters()
        for of_run in self._bound:
            if of_run.parameter.is_gone:
                raise _has_changed(of_run.parameter)
        others = [
            (of_run.parameter, of_run.parameter.tensor)
            for of_run in self._bound
            if not of_run.parameter.is_bound(of_run.tensor)
        ]
        try:
            for of_run in self._bound if others else ():
                of_run.parameter.bind(of_run.tensor)
            put_numbers(self.held)
            now = self._batched.parameters.trainable
            changed = [of_run.parameter for of_run in self._bound if not of_run.is_same()]
            changed += [p for name, p in self.read.items() if now.get(name) is not p]
            if changed:
                raise _has_changed(changed[0])
            yield
        finally:
            for parameter, tensor in others:
                parameter.bind(tensor)

    def differentiate_gradients(
        self, gradients: OfOutputs, directions: Sequence[torch.Tensor | None]
    ) -> list[torch.Tensor | None]:
        """Differentiate the gradients of `tensors`.

        Args:
            gradients: the gradients of outputs from which they were computed, by slot.
            directions: the gradient of each of them; None for zeros.

        Returns:
            The gradients of `gradients`, then those of `tensors`.

        Raises:
            GraphError: second derivatives are unavailable; the message gives the reason.
        """
        _refuse_rows(directions)
        if any(isinstance(x, Graph) for x in self.instances):
            raise GraphError(
                "second derivatives of a mini-batch of recorded graphs are not available, because the instances have "
                "to be recorded again; give the instances themselves to the batched function."
            )
        if self._batched.recorder.is_async:
            raise GraphError(
                "second derivatives of an async function are not available, because its programs run once; "
                "differentiate a function that awaits nothing, or each instance alone."
            )
        module = self._batched.recorder.module
        assert isinstance(module, TorchModule)
        tensors = [(of_run.parameter, of_run.tensor) for of_run in self._bound]
        with run_lock(), module.holding(tensors), self._as_it_ran():
            return self._batched.along(self, gradients, directions)

    def _gradient(self, name: str, ours: Gradient, theirs: Total | None) -> torch.Tensor:
        """Return the gradient of a parameter: the sum of those that our programs and torch have computed."""
        if theirs is None:
            return _to_gradient(ours)
        return theirs.value if name in self._of_torch else theirs.value + _to_gradient(ours)

    def _zeros(self, name: str, parameter: Parameter) -> Gradient:
        if name in self._sparse and id(parameter) in self._step.cells.row_parameters:
            return Rows.zeros(parameter.shape, parameter.dtype, parameter.store)
        zeros: Gradient = parameter.store.xp.zeros(parameter.shape, parameter.dtype)
        return zeros


class Bound:
    """A parameter, and the tensor that it had when a mini-batch ran.

    Args:
        parameter: the parameter at the end of the forward pass.
    """

    def __init__(self, parameter: TensorParameter) -> None:
        self.parameter, self.tensor = parameter, parameter.tensor
        self._version, self._n_assigned = self.tensor._version, parameter.n_assigned
        self._address = self.tensor.data_ptr()

    def is_same(self) -> bool:
        """Return whether the tensor still has the same numbers, even if plans have moved them."""
        # A plan moves the numbers to another address; an assignment to `data` does too, but is counted.
        is_there = self.tensor.data_ptr() == self._address or self.parameter.n_assigned == self._n_assigned
        return is_there and self.tensor._version == self._version


def _has_changed(parameter: TensorParameter) -> GraphError:
    return GraphError(
        f"parameter {parameter.name!r} has changed since the mini-batch ran forward; call backward() before "
        f"optimizer.step(), and before changing parameters or buffers or replacing modules."
    )


class Passed(torch.autograd.Function):
    """The node of a mini-batch in torch's graph."""

    @staticmethod
    def forward(ctx: Any, passing: Passing, *tensors: torch.Tensor) -> Any:
        ctx.passing = passing
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(torch.empty(0))  # torch frees it with the graph, and then raises on access
        return tuple(map(to_tensor, passing.columns))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.saved_tensors  # noqa: B018 - raises if torch has freed the graph, see `forward`
        if torch.is_grad_enabled():
            given = {slot: g for slot, g in enumerate(gradients) if g is not None}
            return None, *gradients_of(ctx.passing, given)
        return None, *ctx.passing.backward(_to_arrays(gradients))


class _Pulled(torch.autograd.Function):
    """The node of a mini-batch's gradients in torch's graph."""

    @staticmethod
    def forward(ctx: Any, passing: Passing, slots: Sequence[int], *tensors: torch.Tensor) -> Any:
        ctx.passing, ctx.slots = passing, slots
        ctx.set_materialize_grads(False)
        gradients = tensors[: len(slots)]
        ctx.save_for_backward(*gradients)
        return tuple(passing.backward(_to_arrays(gradients, slots)))

    @staticmethod
    def backward(ctx: Any, *directions: torch.Tensor | None) -> Any:
        gradients = dict(zip(ctx.slots, ctx.saved_tensors, strict=True))
        return None, None, *ctx.passing.differentiate_gradients(gradients, directions)


def gradients_of(passing: Passing, gradients: OfOutputs) -> Sequence[torch.Tensor]:
    """Return the gradient of each tensor of a mini-batch; the gradients can be differentiated in turn.

    Args:
        passing: the mini-batch.
        gradients: the gradients of outputs, by slot.
    """
    found: Sequence[torch.Tensor] = _Pulled.apply(  # type: ignore[no-untyped-call]
        passing, tuple(gradients), *gradients.values(), *passing.tensors
    )
    return found


def put_numbers(held: Held) -> None:
    """Set parameters to the given numbers, in place."""
    with torch.no_grad():
        for parameter, numbers in held:
            parameter.tensor.copy_(numbers)


def _to_arrays(gradients: Sequence[torch.Tensor | None], slots: Sequence[int] | None = None) -> dict[int, Any]:
    """Convert the gradients of outputs to arrays, by slot; slots are numbered from 0 by default."""
    pairs = enumerate(gradients) if slots is None else zip(slots, gradients, strict=True)
    try:
        return {slot: to_array(g.contiguous()) for slot, g in pairs if g is not None}
    except RuntimeError:
        _refuse_rows(gradients)
        raise


def _refuse_rows(gradients: Sequence[torch.Tensor | None]) -> None:
    """Raise a GraphError if a gradient represents a batch of gradients."""
    functorch: Any = torch._C._functorch
    for x in gradients:
        if x is not None and (functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x)):
            raise GraphError(
                "a batched function must be differentiated for one gradient at a time, not by is_grads_batched=True, "
                "vectorize=True or torch.func.vmap; differentiate in a loop, with retain_graph=True."
            ) from None


def _to_gradient(gradient: Gradient) -> torch.Tensor:
    if not isinstance(gradient, Rows):
        return to_tensor(gradient)
    values = to_tensor(gradient.values)
    ids = torch.from_numpy(gradient.ids.astype(np.int64)[None]).to(values.device)
    return torch.sparse_coo_tensor(ids, values, gradient.shape, check_invariants=False, is_coalesced=True)
