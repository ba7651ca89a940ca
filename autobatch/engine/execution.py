"""Run planned mini-batches, part by part, with the parameters of the module; and differentiate them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch.backends.base import RowReader, Run, Timer
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.engine.input_gradients import InputGradients
from autobatch.engine.losses import LateLosses, check_finite
from autobatch.ops.randomness import Randomness
from autobatch.params.gradients import GradientBuffers, Gradients
from autobatch.params.module import shared_store
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import Gradient, Rows
from autobatch.plan.budget import Part
from autobatch.trace.record import Recorder

Array = NDArray[Any]
ARRAY, TRAINABLE = attrgetter("array"), attrgetter("trainable")


class Differentiation(Protocol):
    """Differentiates the runs of a mini-batch's parts, one after the other, and collects the gradients."""

    def add(self, executor: Executor, step: Step, part: Part, instances: slice, run: Run) -> None:
        """Differentiate the run of a part, within its context.

        Args:
            instances: the positions of its instances.
        """

    def gradients(self) -> dict[str, Gradient]:
        """The gradients, once all parts have run."""


class OfSum:
    """The gradients of a weighted sum of losses; see `Differentiation`.

    Args:
        slot: that of the losses.
        weights: of the losses, per instance.
        grads: gradients to add to; None for this thread's buffers, set to zero.
        inputs: the gradients of the inputs, which are added to; None if they are not asked for.
        late: of a device that is not waited for: whether the losses are finite is noted in `Gradients.finite`.
    """

    def __init__(
        self,
        slot: int,
        weights: Array,
        grads: dict[str, Gradient] | None,
        inputs: InputGradients | None,
        late: LateLosses | None,
    ) -> None:
        self._slot, self._weights, self._grads, self._inputs, self._late = slot, weights, grads, inputs, late

    def add(self, executor: Executor, step: Step, part: Part, instances: slice, run: Run) -> None:
        """See `Differentiation`.

        Raises:
            NumericError: a loss is not finite; not if they are late.
        """
        weights, slot = self._weights[instances], self._slot
        if self._late is not None:
            self._late.add(run.on_device(slot), weights)
        else:
            check_finite(run.outputs[slot], instances.start)
        self._grads = executor.backward(step, run, {slot: weights.astype(executor.dtype)}, self._grads)
        if self._inputs is not None:
            self._inputs.add(part.plan, run)

    def gradients(self) -> dict[str, Gradient]:
        """See `Differentiation`."""
        grads, late = self._grads, self._late
        assert grads is not None, "there are instances, and so parts"
        if late is not None and isinstance(grads, Gradients):
            grads.finite = late.finite if grads.finite is None else grads.finite & late.finite
        return grads


class _Own(threading.local):
    """Gradient buffers per thread: the gradients that a thread receives stay valid until its own next step."""

    def __init__(self) -> None:
        self.gradients = GradientBuffers()


class Executor:
    """Runs the mini-batches of one function; each thread reuses its gradient buffers.

    Args:
        recorder: the function's recorder.

    Attributes:
        dtype: float type of all values: that of the module's parameters; float32 without a module.
        store: the memory of the device on which the parameters are.
        trainable: the parameters that have gradients, by name; names: these names.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._own = _Own()
        self._parameters: dict[str, Parameter] = {}
        self.trainable: dict[str, Parameter] = {}
        self.names: frozenset[str] = frozenset()
        self._flags: list[bool] = []
        self._arrays: list[Any] = []
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.store: Store = HOST

    def refresh(self) -> None:
        """Look up the parameters of the module; once per call."""
        known = self._recorder.known
        if known is None:
            return
        parameters = self._recorder.parameters()
        arrays, flags = [*map(ARRAY, parameters.values())], [*map(TRAINABLE, parameters.values())]
        if parameters is not self._parameters or flags != self._flags:
            self._parameters, self._flags = parameters, flags
            self.trainable = {name: p for name, p in parameters.items() if p.trainable}
            self.names = frozenset(self.trainable)
        if arrays and len(arrays) == len(self._arrays) and all(map(is_, arrays, self._arrays)):
            return  # so that they are of the same type, on the same device
        dtypes = {p.dtype for p in parameters.values()}
        self.dtype = dtypes.pop() if len(dtypes) == 1 else known.module.dtype
        stores = {id(p.store): p.store for p in parameters.values()}
        self.store = stores.popitem()[1] if len(stores) == 1 else shared_store(known.module)
        self._arrays = arrays

    def run(
        self,
        step: Step,
        draw: tuple[int, int],
        differentiation: Differentiation | None = None,
        timer: Timer | None = None,
    ) -> list[Run]:
        """Run the parts one after the other; return their runs, which are closed but still give the outputs.

        Args:
            draw: the seed and the number of the step; random numbers depend on both.
            differentiation: goes backward through each part; None for inference.
            timer: is called when each batch is done.
        """
        found = []
        for part, instances in self.parts(step):
            run = self._begin(step, part, instances, draw, timer)
            try:
                with run:
                    self.forward(step, run)
                    if differentiation is not None:
                        differentiation.add(self, step, part, instances, run)
                step.counts.append(run.counts())
            finally:
                run.close()
            found.append(run)
        return found

    def parts(self, step: Step) -> list[tuple[Part, slice]]:
        """The parts, and the instances of each."""
        self._recorder.check_parameters(self._parameters)
        found, first = [], 0
        for part in step.parts:
            end = first + part.graph.keys.size
            found.append((part, slice(first, end)))
            first = end
        return found

    def start(
        self,
        step: Step,
        part: Part,
        instances: slice,
        draw: tuple[int, int],
        timer: Timer | None = None,
        copies: bool = True,
    ) -> Run:
        """Run a part; the run is the caller's to close.

        Args:
            draw: the seed and the number of the step.
            copies: whether the outputs are copied to the host.
        """
        run = self._begin(step, part, instances, draw, timer)
        try:
            with run:
                self.forward(step, run, copies)
        except BaseException:
            run.close()
            raise
        return run

    def _begin(self, step: Step, part: Part, instances: slice, draw: tuple[int, int], timer: Timer | None) -> Run:
        """Make the run of a part."""
        module = self._recorder.module
        random = Randomness(*draw, step.graph.keys[instances], module is None or module.training)
        run: Run = part.executable.begin(random, timer)
        return run

    def forward(self, step: Step, run: Run, copies: bool = True) -> None:
        """Compute the values of a part, within the context of its run.

        Args:
            copies: whether the outputs are copied to the host.
        """
        run.forward(copies)
        step.clock.lap("forward")

    def zeros(self, rows: Collection[str]) -> Gradients:
        """Zeros for the gradients of a mini-batch without instances, in this thread's buffers.

        Args:
            rows: the names of those that are `Rows`.
        """
        trainable = self.trainable
        return self._own.gradients.zeros(trainable, frozenset(id(trainable[name]) for name in rows))

    def backward(
        self,
        step: Step,
        run: Run,
        seeds: Mapping[int, Array],
        out: dict[str, Gradient] | None,
        reader: RowReader | None = None,
    ) -> dict[str, Gradient]:
        """Differentiate the run of a part, within its context.

        Args:
            seeds: per slot, the gradient of its rows.
            out: gradients to add to; None for this thread's buffers, set to zero.
            reader: is given the rows that the gradients are sums of, before they are added up.
        """
        trainable = self.trainable
        if out is None:
            out = self._own.gradients.zeros(trainable, step.cells.row_parameters)
        else:
            for name, parameter in trainable.items():
                if isinstance(out[name], Rows) and id(parameter) not in step.cells.row_parameters:
                    out[name] = parameter.store.put(np.asarray(out[name]))
        into = dict(zip(map(id, trainable.values()), map(out.__getitem__, trainable), strict=True))
        if reader is None:
            run.backward(seeds, into)
        else:
            run.backward(seeds, into, reader)
        step.clock.lap("backward")
        return out

    def read_rows(self, step: Step, run: Run, seeds: Mapping[int, Array], reader: RowReader) -> None:
        """Differentiate the run of a part up to the rows that gradients of parameters are sums of, for a reader."""
        run.backward(seeds, {}, reader)
        step.clock.lap("backward")


def join_columns(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Join the outputs of the runs of consecutive parts of a mini-batch."""
    return list(parts[0]) if len(parts) == 1 else [np.concatenate(columns) for columns in zip(*parts, strict=True)]
