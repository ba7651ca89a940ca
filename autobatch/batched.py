"""The public door: a function over one instance becomes a function over mini-batches.

    record -> merge -> rewrite -> schedule -> place -> execute

Each stage is a call below; `Batched` holds what they keep from one mini-batch to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import Key
from autobatch.autodiff import differentiate
from autobatch.errors import BackendError, DataError, GraphError, NumericError, PolicyError, ShapeError
from autobatch.executor import NAMES, Backend, make_backend
from autobatch.graph import Graph, checking, merge_graphs, split_graph
from autobatch.module import Module, Parameter
from autobatch.plan import PlannedCell, PlannedTypes, Planner, check_plan
from autobatch.prefetching import prefetch
from autobatch.randomness import Randomness
from autobatch.record import Recorder
from autobatch.report import Clock, LastCall, Report, Step, make_report
from autobatch.results import Slot, SlotTable, stack_results
from autobatch.rewrite import DEFAULT, rewrite, to_passes
from autobatch.rows import Gradient, Rows
from autobatch.schedule import Policy, make_schedule

Array = NDArray[Any]


class Batched:
    """A function over one instance, run on mini-batches; made by `batched`.

    Attributes:
        last: counts and times of the last call; None before the first.
        seed, step: what random numbers depend on; `step` counts the calls of value_and_grad.
        policy, planner, backend: what decides the batches, decides the places, and computes.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        module: Module | None,
        policy: Policy,
        planner: Planner,
        backend: Backend,
        rewrites: Sequence[str],
        seed: int,
    ) -> None:
        self.policy, self.planner, self.backend, self.rewrites = policy, planner, backend, tuple(rewrites)
        self.seed, self.step = seed, 0
        self.last: LastCall | None = None
        self._module = module
        self._recorder = Recorder(function, module)
        self._planned: dict[frozenset[str] | None, PlannedTypes] = {}
        self._gradients: dict[str, Gradient] = {}

    def __call__(self, instances: Iterable[Any]) -> Any:
        """Compute `[function(x) for x in instances]`, stacked.

        Args:
            instances: whatever the function takes, or graphs from `record_all`.

        Returns:
            The structure that the function returns, with arrays `(B, *shape)`; lists, and what is in them, come back
            per instance. An array of shape (0,) for no instances.
        """
        step = self._prepare(instances, training=False)
        if step.graph.n_instances == 0:
            return np.zeros(0, self._dtype())
        columns = self._forward(step)
        self.last = step.finish(self.backend.counts())
        return stack_results(step.graph.structures, columns)

    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        has_aux: bool = False,
        out: dict[str, Gradient] | None = None,
    ) -> Any:
        """Compute the loss of a mini-batch and its gradients.

        Args:
            instances: as for a call; the function returns a scalar value, or `(loss, aux)` with `has_aux`.
            reduce: "mean" or "sum" over instances, or a weight for each, shape (B,).
            out: gradients to add to, as returned before, or arrays; by default buffers that are valid until the next
                call. `Rows` of a table that has been read in another way since are replaced by an array.

        Returns:
            value, grads; or (value, aux), grads with `has_aux`. `grads` has a gradient for every trainable parameter,
            by name: an array, zero where it is not used, or `Rows` for a table that nothing but `lookup` reads.

        Raises:
            DataError: no instances.
            GraphError: the function did not return a scalar value.
            NumericError: a loss is not finite.
        """
        step = self._prepare(instances, training=True)
        weights = loss_weights(reduce, step.graph.n_instances)
        slot = loss_slot(step.graph, self._recorder.slots, has_aux)
        columns = self._forward(step)
        losses = columns[slot]
        check_finite(losses)
        grads = self._backward(step, {slot: weights.astype(losses.dtype)}, out)
        self.step += 1
        self.last = step.finish(self.backend.counts())
        value = (weights * losses).sum().astype(losses.dtype)
        if has_aux:
            return (value, stack_results([s.children[1] for s in step.graph.structures], columns)), grads
        return value, grads

    def record_all(self, instances: Iterable[Any], progress: bool = False) -> list[Graph]:
        """Record each instance once, for use in many mini-batches.

        Right where control flow does not depend on computed values; the parameters' numbers may change in between.
        With `progress`, how far it is shows on standard error.
        """
        listed = list_instances(instances)
        if not progress:
            return split_graph(self._recorder.record(listed))
        from rich.console import Console
        from rich.progress import track

        return split_graph(self._recorder.record(track(listed, "recording", console=Console(stderr=True))))

    def prefetch(self, minibatches: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
        """Record mini-batches ahead, each in a thread while the last one is in use; for instances recorded afresh.

        That pays where drawing or recording instances waits, for files or inside NumPy. Where it is all Python it is
        slower than without, for threads take turns at that: see `autobatch.prefetching` for figures. Results are
        those of the unrecorded mini-batches; graphs pass as they are. Random numbers that `minibatches` or the
        function draw are drawn ahead: leave their generator to them, and expect it one mini-batch on after leaving
        the loop early.

        Args:
            minibatches: lists of instances; drawn from in the thread.

        Yields:
            for each mini-batch a list of graphs, one per instance.

        Raises:
            Whatever drawing or recording raises, where the mini-batch would have come.

        >>> import autobatch as ab
        >>> double = ab.batched(lambda x: 2.0 * x)
        >>> [double(batch).tolist() for batch in double.prefetch([[np.ones(())], [np.zeros(()), np.ones(())]])]
        [[2.0], [0.0, 2.0]]
        """
        return prefetch(minibatches, self._record_apart)

    def explain(
        self, instances: Iterable[Any], training: bool = False, has_aux: bool = False, bound: str = "chain"
    ) -> Report:
        """Run a mini-batch and say what happened: nodes, batches, bound and gap, launches, copies, rewrites.

        Args:
            instances: as for a call.
            training: run backward too; launches and copies are those of both.
            has_aux: as for `value_and_grad`, with `training`.
            bound: "chain", or "pairs" for a better bound on the batches, which takes a second or so.

        Raises:
            PolicyError: there is no such bound.
        """
        from autobatch.policies.judging import judge

        step = self._prepare(instances, training)
        self._forward(step)
        if training:
            slot = loss_slot(step.graph, self._recorder.slots, has_aux)
            self._backward(step, {slot: np.ones(step.graph.n_instances, self._dtype())}, None)
        judgement = judge(step.plan.graph, step.plan.schedule, bound)
        return make_report(step, self.policy, self.backend.counts(), self._recorder.types, judgement)

    def merged(self, instances: Iterable[Any]) -> Graph:
        """Give the graph of a mini-batch as policies see it: recorded, merged and rewritten."""
        return rewrite(self._graph(instances), self.rewrites)[0]

    def learn_policy(
        self,
        minibatches: Iterable[Iterable[Any]],
        encoding: str = "sort",
        seed: int = 0,
        *,
        held_out: Iterable[Iterable[Any]] = (),
        online: bool = False,
        progress: bool = False,
        **options: Any,
    ) -> Any:
        """Learn a state machine that decides what runs together, by Q-learning, and use it from now on.

        Args:
            minibatches: lists of instances, or of graphs from `record_all`; at least one.
            encoding: what the machine sees of the ready nodes: "base", "max" or "sort".
            seed: same seed, same policy.
            held_out: mini-batches that decide which of the machines met on the way is the best.
            online: go on learning, from each mini-batch in which the machine meets a state that it does not know.
            progress: show how far it is on standard error.
            options: critical, mask, reward, direction, compact, episodes, ...: see `autobatch.policies.learning`, whose
                defaults do best. What ED-Batch published is `**ab.policies.PUBLISHED`.

        Returns:
            The policy: `save` writes it to a file, whose path is a policy for `ab.batched`.

        Raises:
            PolicyError: no mini-batches, or an option that does not exist or is out of range.

        Cost: about as long as planning the mini-batches `episodes` times, 1000 by default, in each direction.
        """
        from autobatch.policies.learning import learn, show_learning
        from autobatch.policies.online import keep_learning

        graphs, held = [self.merged(batch) for batch in minibatches], [self.merged(batch) for batch in held_out]
        with show_learning(progress) as on_progress:
            policy = learn(graphs, held_out=held, encoding=encoding, seed=seed, on_progress=on_progress, **options)
        if online:
            keep_learning(policy)
        self.policy = policy
        return policy

    # The stages of one mini-batch.

    def _prepare(self, instances: Iterable[Any], training: bool) -> Step:
        """Record or merge, rewrite, schedule and place."""
        clock = Clock()
        graph = self._graph(instances)
        clock.lap("record_ms")
        rewritten, rewrites = rewrite(graph, self.rewrites)
        schedule = make_schedule(rewritten, self.policy)
        clock.lap("schedule_ms")
        cells = self._planned_types(training)
        plan = self.planner.place(rewritten, schedule, cells)
        if checking():
            check_plan(plan, cells)
        clock.lap("place_ms")
        return Step(graph, rewrites, plan, cells, clock, getattr(self.policy, "unseen_share", None))

    def _graph(self, instances: Iterable[Any]) -> Graph:
        listed = list_instances(instances)
        recorded = [isinstance(x, Graph) for x in listed]
        if all(recorded):
            return merge_graphs(listed, self._recorder.types)
        if any(recorded):
            raise GraphError("a mini-batch holds recorded graphs and unrecorded instances; give it one kind.")
        return self._recorder.record(listed)

    def _record_apart(self, instances: Iterable[Any]) -> list[Any]:
        """Record each instance while other threads use the module; what is recorded stays as it is."""
        listed = list_instances(instances)
        if any(isinstance(x, Graph) for x in listed):
            return listed
        return split_graph(self._recorder.record(listed, in_place=False))

    def _planned_types(self, training: bool) -> PlannedTypes:
        """Layouts of all types met so far; those of known types are kept, for each set of trainable parameters."""
        types, shapes = self._recorder.types, self._recorder.slots.shapes
        purpose = frozenset(name for name, p in self._parameters().items() if p.trainable) if training else None
        known = self._planned.get(purpose)
        if known is None or len(known.cells) < len(types) or len(known.slot_shapes) < len(shapes):
            cells = list(known.cells) if known is not None else []
            for node_type in types.types[len(cells) :]:
                derivative = differentiate(node_type.program) if training else None
                cells.append(PlannedCell(node_type, derivative, self.planner.layout(node_type.program, derivative)))
            known = self._planned[purpose] = PlannedTypes(cells, list(shapes), training)
        return known

    def _forward(self, step: Step) -> list[Array]:
        self._check_parameters(step.cells)
        training = self._module is None or self._module.training
        random = Randomness(self.seed, self.step, training=training)
        columns = self.backend.forward(step.plan, step.cells, self._dtype(), random)
        step.clock.lap("execute_ms")
        return columns

    def _backward(self, step: Step, seeds: Mapping[int, Array], out: dict[str, Gradient] | None) -> dict[str, Gradient]:
        trainable = {name: p for name, p in self._parameters().items() if p.trainable}
        if out is None:
            out = self._gradients = {
                name: Rows.zeros(parameter.shape, parameter.dtype)
                if id(parameter) in step.cells.row_parameters
                else zeros_like(parameter.data, self._gradients.get(name))
                for name, parameter in trainable.items()
            }
        else:
            check_gradients(out, trainable)
            for name, parameter in trainable.items():
                if isinstance(out[name], Rows) and id(parameter) not in step.cells.row_parameters:
                    out[name] = np.asarray(out[name])
        self.backend.backward(seeds, {id(p): out[name] for name, p in trainable.items()})
        step.clock.lap("execute_ms")
        return out

    # What the function reads.

    def _parameters(self) -> dict[str, Parameter]:
        return self._module.parameters() if self._module is not None else {}

    def _dtype(self) -> np.dtype[Any]:
        return self._module.dtype if self._module is not None else np.dtype(np.float32)

    def _check_parameters(self, cells: PlannedTypes) -> None:
        """Refuse to compute with a parameter that the module does not have (any more)."""
        known = {id(p) for p in self._parameters().values()}
        owner = type(self._module).__name__ if self._module is not None else "a module, for ab.batched was given none"
        for node_type in self._recorder.types.types:
            for parameter in node_type.program.parameters:
                if id(parameter) not in known:
                    raise GraphError(
                        f"cell {node_type.name!r} reads a {parameter!r} that is not, or no longer, a parameter of "
                        f"{owner}; pass module=, and make a new ab.batched after replacing a parameter."
                    )


def batched(
    function: Callable[[Any], Any],
    *,
    module: Module | None = None,
    policy: str | Policy = "auto",
    backend: str | Backend = "auto",
    planner: Planner | None = None,
    rewrites: Sequence[str] = DEFAULT,
    seed: int = 0,
) -> Batched:
    """Turn a function over one instance into one over mini-batches.

    Args:
        function: takes one instance and calls cells; a method of a `Module`, or any function.
        module: the owner of the parameters; by default the module that `function` is a method of.
        policy: what decides the batches: a name, the path of a saved policy, or a `Policy`; see
            `autobatch.policies.get`. "auto" chooses one for the backend, see `autobatch.policies.auto`.
        backend: what computes: a name ("auto" is "reference"), or a `Backend`.
        planner: what decides where values live.
        rewrites: the passes that simplify the graph, see `autobatch.rewrite`. "all" adds the one that is off by
            default: nodes of a mini-batch that compute the same are computed once.
        seed: of random numbers (dropout).

    Raises:
        PolicyError, BackendError: there is no such policy or backend.
        GraphError: there is no such rewrite, or `function` or `module` are none.

    >>> import autobatch as ab
    >>> @ab.cell
    ... def double(x):
    ...     return 2.0 * x
    >>> ab.batched(lambda x: double(double(x)))([np.ones(2), np.zeros(2)])
    array([[4., 4.],
           [0., 0.]], dtype=float32)
    """
    from autobatch import policies
    from autobatch.memplan.placement import WriteToReaders

    owner = getattr(function, "__self__", None)
    if module is None and isinstance(owner, Module):
        module = owner
    if not callable(function) or not isinstance(module, Module | None):
        raise GraphError(
            f"ab.batched(function, module=...) takes a function over one instance and a Module, not {function!r} and "
            f"{module!r}; give a method of a model, such as model.loss."
        )
    if isinstance(backend, str):
        backend = make_backend(backend)
    elif isinstance(backend, type) or not hasattr(backend, "forward"):
        raise BackendError(f"backend={backend!r} is neither a name nor a Backend; give one of {', '.join(NAMES)}.")
    if isinstance(policy, str):
        policy = policies.Auto(backend.name) if policy == "auto" else policies.get(policy)
    elif isinstance(policy, type) or not hasattr(policy, "schedule"):
        raise PolicyError(
            f"policy={policy!r} is neither a name nor a Policy; give one of {', '.join(policies.names())}, or the path "
            f"of a saved policy."
        )
    return Batched(function, module, policy, planner or WriteToReaders(), backend, to_passes(rewrites), seed)


def list_instances(instances: Iterable[Any]) -> list[Any]:
    """The instances of a mini-batch; DataError for a single one."""
    if not isinstance(instances, Iterable):
        raise DataError(f"a mini-batch is a list of instances, not {instances!r}; for one instance, give [instance].")
    return list(instances)


def loss_weights(reduce: str | Sequence[float] | Array, n_instances: int) -> Array:
    """The factor of each instance's loss, float64 (B,)."""
    if n_instances == 0:
        raise DataError("value_and_grad of no instances: their mean has no value; give at least one instance.")
    if isinstance(reduce, str):
        if reduce not in ("mean", "sum"):
            raise DataError(f"reduce={reduce!r}: it is 'mean', 'sum' or an array of weights.")
        return np.full(n_instances, 1.0 / n_instances if reduce == "mean" else 1.0)
    try:
        weights = np.asarray(reduce, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"reduce={reduce!r}: it is 'mean', 'sum' or an array of weights.") from None
    if weights.shape != (n_instances,):
        raise ShapeError(
            f"reduce= has weights of shape {weights.shape} for {n_instances} instances; give one for each."
        )
    return weights


def loss_slot(graph: Graph, slots: SlotTable, has_aux: bool) -> int:
    """The slot of the loss; GraphError if the function did not return one scalar value per instance."""
    for number, structure in enumerate(graph.structures):
        if has_aux and not (isinstance(structure, Key) and structure.kind == "tuple" and len(structure.children) == 2):
            raise GraphError(f"with has_aux=True the function returns (loss, aux); for instance {number} it did not.")
        loss = structure.children[0] if has_aux else structure
        if not isinstance(loss, Slot) or slots.shapes[loss.number] != ():
            what = f"a value of shape {slots.shapes[loss.number]}" if isinstance(loss, Slot) else "no single value"
            raise GraphError(
                f"value_and_grad needs a scalar loss; for instance {number} the function returned {what}. Sum what the "
                f"loss is made of; where there is nothing to compute, return np.zeros(())."
            )
    first = graph.structures[0]
    return int((first.children[0] if has_aux else first).number)


def zeros_like(array: Array, buffer: Gradient | None) -> Array:
    """`buffer`, filled with zeros, if it is an array of the shape and dtype of `array`; else a new array."""
    if not isinstance(buffer, np.ndarray) or (buffer.shape, buffer.dtype) != (array.shape, array.dtype):
        return np.zeros_like(array)
    buffer.fill(0)
    return buffer


def check_gradients(out: Mapping[str, Gradient], trainable: Mapping[str, Parameter]) -> None:
    """Refuse gradients to add to that are not those of the trainable parameters."""
    given = {name: (np.shape(g), getattr(g, "dtype", None)) for name, g in out.items()}
    wanted = {name: (p.shape, p.dtype) for name, p in trainable.items()}
    if given != wanted:
        name = next(n for n in (*wanted, *given) if given.get(n) != wanted.get(n))
        what = ["{0[1]} of shape {0[0]}".format(x[name]) if name in x else "nothing" for x in (given, wanted)]
        raise ShapeError(
            f"out= has {what[0]} for parameter {name!r}, whose gradient is {what[1]}; give gradients as an earlier "
            f"call returned them."
        )


def check_finite(losses: Array) -> None:
    """Refuse losses that are NaN or infinite."""
    wrong = np.flatnonzero(~np.isfinite(losses))
    if wrong.size:
        raise NumericError(
            f"the loss of {wrong.size} of {losses.size} instances is not finite (instance {wrong[0]}: "
            f"{losses[wrong[0]]}); no gradient was computed. Lower the learning rate, clip gradients, or call the "
            f"function directly on that instance to see where the number comes from."
        )
