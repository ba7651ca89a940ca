"""Compute per-instance gradients, or sums of per-instance gradients after clipping, for `value_and_grad`.

Both plan mini-batches without shared nodes, so that each row belongs to one instance. Both seed every loss with 1, so
that the gradient at a node is that of the loss of its own instance.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from autobatch._native import crossing_node
from autobatch.backends.base import Run
from autobatch.backends.by_instance import read_gradients, scale_rows
from autobatch.backends.options import ByInstance, Options
from autobatch.engine.counts import Clock, Step
from autobatch.engine.results import Differentiation, Exchange, InputGradients, check_finite, weighted_sum
from autobatch.engine.runner import Runner
from autobatch.errors import DataError, GraphError, NumericError, PlanError
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite import UNSHARED
from autobatch.params.gradients import Gradients
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.budget import Part

Array = NDArray[Any]
NONE, PER_INSTANCE = "none", "per-instance"


class EachInstance(Differentiation):
    """The per-instance request of one call of `value_and_grad`; a `Differentiation` after `begin`.

    Attributes:
        names: the parameters to differentiate with respect to; None for all trainable parameters.
        text: a description on which the processes of a group must agree.
    """

    def __init__(self, names: tuple[str, ...] | None, text: str) -> None:
        self.names, self.text = names, f"{text} {'all' if names is None else ' '.join(sorted(names))}"
        self._losses: list[Array] = []

    @abstractmethod
    def planned(self, options: Options, trainable: Mapping[str, Parameter], n_instances: int) -> Options:
        """Return the options for planning the mini-batch.

        Raises:
            DataError: `names` contains a name that no trainable parameter has.
            PlanError: the results alone take more than `max_bytes`.
        """

    def begin(
        self,
        runner: Runner,
        step: Step,
        weights: Array,
        grads: dict[str, Gradient] | None,
        inputs: InputGradients | None,
    ) -> None:
        """Start to differentiate a mini-batch; see `autobatch.engine.results.GradientSum` for the arguments."""
        self._parameters = self._wanted(runner.parameters.trainable)
        self._slot, self._weights, self._grads, self._inputs = step.loss_slot, weights, grads, inputs

    @abstractmethod
    def of_nothing(self, runner: Runner, exchange: Exchange, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """Return the result of the call in a process that has no instances."""

    def _seeds(self, instances: slice, run: Run) -> dict[int, Array]:
        """Check and store the losses of a part; return the gradients that seed the backward pass, all ones."""
        losses = run.outputs[self._slot]
        check_finite(losses, instances.start)
        self._losses.append(losses)
        return {self._slot: np.ones_like(losses)}

    def _wanted(self, trainable: Mapping[str, Parameter]) -> dict[str, Parameter]:
        """Return the requested parameters by name; raise a DataError for an unknown name."""
        names = tuple(trainable) if self.names is None else self.names
        unknown = [name for name in names if name not in trainable]
        if unknown:
            known = ", ".join(trainable) or "none"
            raise DataError(f"only= must name trainable parameters ({known}), got {unknown[0]!r}.")
        return {name: trainable[name] for name in names}


class PerInstance(EachInstance):
    """The losses (B,) and gradients (B, *shape) of all instances; see `EachInstance`."""

    _made: Gradients | None = None

    def planned(self, options: Options, trainable: Mapping[str, Parameter], n_instances: int) -> Options:
        wanted, limit = self._wanted(trainable), options.max_bytes
        size = n_instances * sum(math.prod(parameter.shape) for parameter in wanted.values())
        n_bytes = size * options.dtype.itemsize
        if limit is not None and n_bytes > limit:
            raise PlanError(
                f"cannot give gradients of {n_instances} instances: the results alone take {n_bytes} bytes, but "
                f"max_bytes is {limit}. Raise max_bytes, name fewer parameters in only=, or give fewer instances."
            )
        return _options(options, wanted, clips=False, n_bytes=n_bytes)

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        if self._made is None:
            self._made = self._zeros(runner, step.graph.n_instances)
        into = {id(p): self._made[name][instances] for name, p in self._parameters.items()}
        runner.read_rows(step, run, self._seeds(instances, run), partial(read_gradients, into))
        if self._inputs is not None:
            self._inputs.add(part.plan, run)

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """Return the losses and gradients of the instances of this process; see `Differentiation`."""
        losses = np.concatenate(self._losses)
        if exchange is not None:  # if one process has raised an error, all of them raise it here
            exchange.add(weighted_sum(losses, np.ones(losses.size)), {}, clock)
        assert self._made is not None, "there are instances, and so parts"
        return losses, self._made

    def of_nothing(self, runner: Runner, exchange: Exchange, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        dtype = runner.parameters.dtype
        exchange.add_nothing(dtype, [], lambda rows: Gradients(), clock)
        return np.zeros(0, dtype), self._zeros(runner, 0)

    def _zeros(self, runner: Runner, n_instances: int) -> Gradients:
        wanted = self._wanted(runner.parameters.trainable)
        return Gradients({n: p.store.xp.zeros((n_instances, *p.shape), p.dtype) for n, p in wanted.items()})


class ClippedSum(EachInstance):
    """The weighted sums of the losses and of the clipped per-instance gradients; see `EachInstance`.

    `Gradients.norms` receives the norms before clipping.
    """

    def __init__(self, names: tuple[str, ...] | None, max_norm: float) -> None:
        super().__init__(names, f"clipped to {max_norm!r},")
        self._max_norm, self._norms = max_norm, list[NDArray[np.float64]]()

    def planned(self, options: Options, trainable: Mapping[str, Parameter], n_instances: int) -> Options:
        return _options(options, self._wanted(trainable), clips=True, n_bytes=0)

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        def factors_of(norms: NDArray[np.float64]) -> NDArray[np.float64]:
            _check_norms(norms, instances.start)
            self._norms.append(norms)
            # The weight times min(1, max_norm / norm), in a form that never divides by 0.
            return self._weights[instances] * np.minimum(1.0, self._max_norm / np.maximum(norms, self._max_norm))

        reader = partial(scale_rows, frozenset(map(id, self._parameters.values())), factors_of)
        self._grads = runner.backward(step, run, self._seeds(instances, run), self._grads, reader)

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        assert self._grads is not None, "there are instances, and so parts"
        value = weighted_sum(np.concatenate(self._losses), self._weights)
        value = value if exchange is None else exchange.add(value, self._grads, clock)
        return value, self._named(self._grads, np.concatenate(self._norms))

    def of_nothing(self, runner: Runner, exchange: Exchange, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        names = [*runner.parameters.trainable]
        value, grads = exchange.add_nothing(runner.parameters.dtype, names, runner.zeros, clock)
        return value, self._named(grads, np.zeros(0))

    def _named(self, grads: dict[str, Gradient], norms: NDArray[np.float64]) -> dict[str, Gradient]:
        """Select the requested gradients, and attach the norms."""
        found = grads if self.names is None else Gradients({name: grads[name] for name in self.names})
        if isinstance(found, Gradients):
            found.norms = norms
        return found


def each_instance(
    reduce: str | Sequence[float] | Array,
    only: Collection[str] | None,
    clip: str | None,
    max_norm: float,
    out: dict[str, Gradient] | None,
    inputs: bool,
) -> EachInstance:
    """Build the per-instance request from arguments of `value_and_grad`, at least one of which is per-instance.

    Raises:
        DataError: an argument is invalid, or cannot be combined with another.
    """
    is_apart = isinstance(reduce, str) and reduce == NONE
    names = None if only is None else tuple(dict.fromkeys(only))
    if clip is None:
        if max_norm != 1.0:
            raise DataError(f"max_norm={max_norm!r} requires clip='per-instance'; pass both.")
        if not is_apart:
            _refuse(
                "only=", "reduce='none' or clip=", "a sum is differentiated with respect to all trainable parameters"
            )
        if out is not None:
            _refuse("out=", "a sum", "per-instance gradients are not added to others")
        return PerInstance(names, "none of")
    if clip != PER_INSTANCE:
        raise DataError(f"clip= must be 'per-instance' or None, got {clip!r}.")
    if not isinstance(max_norm, int | float | np.number) or not 0.0 < max_norm < math.inf:
        raise DataError(f"max_norm= must be a finite number above 0, got {max_norm!r}.")
    if is_apart:
        _refuse("clip=", "a sum", "scale the gradients that reduce='none' returns yourself")
    if inputs:
        _refuse("inputs=True", "reduce='none' or no clip=", "clipping scales gradients of parameters, not of inputs")
    if out is not None and names is not None:
        _refuse("out=", "all trainable parameters", "omit only=, or set trainable = False for the others")
    return ClippedSum(names, float(max_norm))


def _refuse(what: str, goes_with: str, why: str) -> NoReturn:
    raise DataError(f"value_and_grad: {what} requires {goes_with}: {why}.")


def _options(options: Options, wanted: Mapping[str, Parameter], clips: bool, n_bytes: int) -> Options:
    parameters = frozenset(map(id, wanted.values()))
    rewrites = tuple(name for name in options.rewrites if name in UNSHARED)
    return options._replace(rewrites=rewrites, by_instance=ByInstance(parameters, clips, n_bytes))


def _check_norms(norms: NDArray[np.float64], first: int) -> None:
    """Raise a NumericError if the norm of a gradient is not finite; `first` is the number of the first instance."""
    wrong = np.flatnonzero(~np.isfinite(norms))
    if wrong.size:
        raise NumericError(
            f"cannot clip the gradient of instance {first + wrong[0]}: its norm must be finite, got {norms[wrong[0]]}. "
            f"Leave the instance out, or lower the learning rate."
        )


def refuse_shared(graph: Graph) -> None:
    """Raise a GraphError if an instance uses a node of another, because the node's gradient then belongs to both."""
    node = crossing_node(graph.words)
    if node >= 0:
        raise GraphError(
            f"per-instance gradients: node {node} ({graph.type_of(node)!r}) is used by an instance other than its own. "
            f"Let each instance compute the values that it uses."
        )
