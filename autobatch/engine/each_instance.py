"""Gradients of each instance, and sums of gradients of which each is clipped; what `value_and_grad` does for them.

Both plan mini-batches without shared nodes, whose rows belong to one instance each, and seed every loss with 1, so that
what goes backward through the nodes of an instance is the gradient of its own loss.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from autobatch._native import crossing_node
from autobatch.backends.base import Run
from autobatch.backends.by_instance.readers import read_gradients, scale_rows
from autobatch.backends.options import ByInstance, Options
from autobatch.engine.counts import Clock, Step
from autobatch.engine.input_gradients import InputGradients
from autobatch.engine.results import Differentiation, Exchange, check_finite, weighted_sum
from autobatch.engine.runner import Runner
from autobatch.errors import DataError, GraphError, NumericError, PlanError
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite.passes import UNSHARED
from autobatch.params.gradients import Gradients
from autobatch.params.parameter import Parameter
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.budget import Part

Array = NDArray[Any]
NONE, PER_INSTANCE = "none", "per-instance"


class EachInstance(Protocol):
    """What `value_and_grad` is asked of each instance.

    Attributes:
        names: of the parameters whose gradients are asked for; None for all that are trainable.
        text: what processes of a group must agree on.
    """

    names: tuple[str, ...] | None
    text: str

    def planned(self, options: Options, trainable: Mapping[str, Parameter], n_instances: int) -> Options:
        """The options by which the mini-batch is planned.

        Raises:
            DataError: a name is that of no trainable parameter.
            PlanError: the results alone take more than `max_bytes`.
        """

    def differentiation(
        self,
        runner: Runner,
        step: Step,
        weights: Array,
        grads: dict[str, Gradient] | None,
        inputs: InputGradients | None,
    ) -> Differentiation:
        """Make the differentiation of the mini-batch; see `autobatch.engine.results.GradientSum` for the arguments."""

    def of_nothing(self, runner: Runner, exchange: Exchange, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """What the call returns in a process that has no instance."""


class Apart:
    """The losses and gradients of all instances, side by side; see `EachInstance`."""

    def __init__(self, names: tuple[str, ...] | None) -> None:
        self.names, self.text = names, f"none of {_listed(names)}"

    def planned(self, options: Options, trainable: Mapping[str, Parameter], n_instances: int) -> Options:
        """See `EachInstance`."""
        wanted = _named(trainable, self.names)
        size = n_instances * sum(math.prod(parameter.shape) for parameter in wanted.values())
        n_bytes, limit = size * options.dtype.itemsize, options.max_bytes
        if limit is not None and n_bytes > limit:
            raise PlanError(
                f"cannot give gradients of {n_instances} instances: the results alone take {n_bytes} bytes and "
                f"max_bytes is {limit}; allow as many, name fewer parameters in only=, or give fewer instances."
            )
        return _by_instance(options, wanted, clips=False, n_bytes=n_bytes)

    def differentiation(
        self,
        runner: Runner,
        step: Step,
        weights: Array,
        grads: dict[str, Gradient] | None,
        inputs: InputGradients | None,
    ) -> Differentiation:
        """Make one whose gradients are arrays (B, *shape); see `EachInstance`."""
        made = self.zeros(runner, step.graph.n_instances)
        return OfEach(_named(runner.parameters.trainable, self.names), made, step.loss_slot, inputs)

    def zeros(self, runner: Runner, n_instances: int) -> Gradients:
        """Zeros (B, *shape) for each gradient that is asked for."""
        wanted = _named(runner.parameters.trainable, self.names)
        made = Gradients()
        for name, parameter in wanted.items():
            made[name] = parameter.store.xp.zeros((n_instances, *parameter.shape), parameter.dtype)
        return made

    def of_nothing(self, runner: Runner, exchange: Exchange, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """See `EachInstance`."""
        dtype = runner.parameters.dtype
        exchange.add_nothing(dtype, [], lambda rows: Gradients(), clock)
        return np.zeros(0, dtype), self.zeros(runner, 0)


class Clipped:
    """The sum of gradients of which each is scaled down to a norm that is too large; see `EachInstance`."""

    def __init__(self, names: tuple[str, ...] | None, max_norm: float) -> None:
        self.names, self.max_norm = names, max_norm
        self.text = f"clipped to {max_norm!r}, {_listed(names)}"

    def planned(self, options: Options, trainable: Mapping[str, Parameter], n_instances: int) -> Options:
        """See `EachInstance`."""
        return _by_instance(options, _named(trainable, self.names), clips=True, n_bytes=0)

    def differentiation(
        self,
        runner: Runner,
        step: Step,
        weights: Array,
        grads: dict[str, Gradient] | None,
        inputs: InputGradients | None,
    ) -> Differentiation:
        """Make one that puts the norms into `Gradients.norms`; see `EachInstance`."""
        wanted = frozenset(map(id, _named(runner.parameters.trainable, self.names).values()))
        return OfClipped(self.names, wanted, self.max_norm, step.loss_slot, weights, grads)

    def of_nothing(self, runner: Runner, exchange: Exchange, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """See `EachInstance`."""
        dtype, trainable = runner.parameters.dtype, runner.parameters.trainable
        value, grads = exchange.add_nothing(dtype, [*trainable], runner.zeros, clock)
        if isinstance(grads, Gradients):
            grads.norms = np.zeros(0)
        return value, _only(grads, self.names)


class OfEach:
    """The gradients of each loss, side by side; see `Differentiation`.

    Args:
        parameters: whose gradients are asked for, by name.
        grads: zeros (B, *shape) for each of them.
        slot: that of the losses.
        inputs: as for `GradientSum`.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], grads: Gradients, slot: int, inputs: InputGradients | None
    ) -> None:
        self._parameters, self._grads, self._slot, self._inputs = parameters, grads, slot, inputs
        self._losses: list[Array] = []

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        """See `Differentiation`."""
        losses = run.outputs[self._slot]
        check_finite(losses, instances.start)
        self._losses.append(losses)
        into = {id(parameter): self._grads[name][instances] for name, parameter in self._parameters.items()}
        runner.read_rows(step, run, {self._slot: np.ones_like(losses)}, partial(read_gradients, into))
        if self._inputs is not None:
            self._inputs.add(part.plan, run)

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """The losses (B,) and the gradients, of the instances of this process; see `Differentiation`."""
        losses = np.concatenate(self._losses)
        if exchange is not None:
            exchange.add(
                weighted_sum(losses, np.ones(losses.size)), {}, clock
            )  # so that all raise what one of them does
        return losses, self._grads


class OfClipped:
    """The gradients of a weighted sum of losses, each of which is clipped; see `Differentiation`.

    Args:
        names: of the parameters whose gradients are asked for; None for all.
        parameters: `id`s of those that norms are over.
        slot, weights, grads: as for `GradientSum`.
    """

    def __init__(
        self,
        names: tuple[str, ...] | None,
        parameters: frozenset[int],
        max_norm: float,
        slot: int,
        weights: Array,
        grads: dict[str, Gradient] | None,
    ) -> None:
        self._names, self._parameters, self._max_norm = names, parameters, max_norm
        self._slot, self._weights, self._grads, self._norms = slot, weights, grads, np.zeros(len(weights))
        self._losses: list[Array] = []

    def add(self, runner: Runner, step: Step, part: Part, instances: slice, run: Run) -> None:
        """See `Differentiation`."""
        losses = run.outputs[self._slot]
        check_finite(losses, instances.start)
        self._losses.append(losses)

        def factors_of(own: NDArray[np.float64]) -> NDArray[np.float64]:
            _check_norms(own, instances.start)
            self._norms[instances] = own
            return self._weights[instances] * np.minimum(1.0, self._max_norm / np.maximum(own, self._max_norm))

        reader = partial(scale_rows, self._parameters, factors_of)
        self._grads = runner.backward(step, run, {self._slot: np.ones_like(losses)}, self._grads, reader)

    def finish(self, exchange: Exchange | None, clock: Clock) -> tuple[Any, dict[str, Gradient]]:
        """The weighted sum of the losses, and the sums of gradients; see `Differentiation`."""
        grads = self._grads
        assert grads is not None, "there are instances, and so parts"
        if isinstance(grads, Gradients):
            grads.norms = self._norms
        value = weighted_sum(np.concatenate(self._losses), self._weights)
        value = value if exchange is None else exchange.add(value, grads, clock)
        return value, _only(grads, self._names)


def _only(grads: dict[str, Gradient], names: tuple[str, ...] | None) -> dict[str, Gradient]:
    """The gradients that are asked for."""
    if names is None:
        return grads
    found = Gradients({name: grads[name] for name in names})
    found.norms = getattr(grads, "norms", None)
    return found


def each_instance(
    reduce: str | Sequence[float] | Array,
    only: Collection[str] | None,
    clip: str | None,
    max_norm: float,
    out: dict[str, Gradient] | None,
    inputs: bool,
) -> Apart | Clipped:
    """What these arguments of `value_and_grad`, of which one is of each instance, ask for.

    Raises:
        DataError: they do not go together, or one is no such argument.
    """
    is_apart = isinstance(reduce, str) and reduce == NONE
    names = None if only is None else tuple(dict.fromkeys(only))
    if clip is None:
        if max_norm != 1.0:
            raise DataError(f"max_norm={max_norm!r} is the norm that clip='per-instance' clips to; give both.")
        if not is_apart:
            _refuse("only=", "reduce='none' or clip=", "of a sum, gradients of all trainable parameters are computed")
        if out is not None:
            _refuse("out=", "a sum", "gradients of each instance are not added to others")
        return Apart(names)
    if clip != PER_INSTANCE:
        raise DataError(f"clip={clip!r}: it is 'per-instance', or None.")
    if not isinstance(max_norm, int | float | np.number) or not 0.0 < max_norm < math.inf:
        raise DataError(f"max_norm={max_norm!r}: give a number above 0, to which the norm of each gradient is clipped.")
    if is_apart:
        _refuse("clip=", "a sum", "scale the gradients that reduce='none' gives as you like")
    if inputs:
        _refuse("inputs=True", "reduce='none' or no clip=", "clipping scales gradients of parameters, not of inputs")
    if out is not None and names is not None:
        _refuse("out=", "all trainable parameters", "leave only= out, or set trainable = False for the others")
    return Clipped(names, float(max_norm))


def _refuse(what: str, goes_with: str, why: str) -> NoReturn:
    raise DataError(f"value_and_grad: {what} goes with {goes_with}: {why}.")


def _listed(names: Sequence[str] | None) -> str:
    return "all" if names is None else " ".join(sorted(names))


def _named(trainable: Mapping[str, Parameter], names: Sequence[str] | None) -> dict[str, Parameter]:
    """The parameters of these names.

    Raises:
        DataError: there is no trainable parameter of a name.
    """
    if names is None:
        return dict(trainable)
    unknown = [name for name in names if name not in trainable]
    if unknown:
        raise DataError(
            f"only= names {unknown[0]!r}, which is no trainable parameter; they are {', '.join(trainable) or 'none'}."
        )
    return {name: trainable[name] for name in names}


def _by_instance(options: Options, wanted: Mapping[str, Parameter], clips: bool, n_bytes: int) -> Options:
    parameters = frozenset(id(parameter) for parameter in wanted.values())
    rewrites = tuple(name for name in options.rewrites if name in UNSHARED)
    return options._replace(rewrites=rewrites, by_instance=ByInstance(parameters, clips, n_bytes))


def _check_norms(norms: NDArray[np.float64], first: int) -> None:
    """Raise a NumericError if the norm of a gradient is not finite; `first` is the number of the first instance."""
    wrong = np.flatnonzero(~np.isfinite(norms))
    if wrong.size:
        raise NumericError(
            f"cannot clip the gradient of instance {first + wrong[0]}: its norm is {norms[wrong[0]]}, no finite "
            f"number; leave the instance out, or lower the learning rate."
        )


def refuse_shared(graph: Graph) -> None:
    """Raise a GraphError if a node is used by another instance than its own: its row is of several instances."""
    node = crossing_node(graph.words)
    if node >= 0:
        raise GraphError(
            f"gradients of each instance: node {node} ({graph.type_of(node)!r}) is used by another instance than its "
            f"own; let each instance compute what it uses."
        )
