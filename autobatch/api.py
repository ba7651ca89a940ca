"""Entry point: `batched` resolves names, validates options and builds a `Batched`, which handles all calls.

    record -> merge -> rewrite -> schedule -> place -> execute

`autobatch.engine.planning` runs the stages before execution and caches the plans of mini-batches. If `max_bytes` would
be exceeded, `autobatch.plan.budget` splits the mini-batch into parts that run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from autobatch.arguments import is_int, show
from autobatch.backends import make_backend
from autobatch.backends.base import Backend
from autobatch.backends.options import Options
from autobatch.devices.store import HOST, Store
from autobatch.engine.counts import Step
from autobatch.engine.group import ENTERED
from autobatch.engine.results import join_columns
from autobatch.engine.session import GradientRequest, Session
from autobatch.errors import DataError, GraphError, PlanError
from autobatch.graph.build import split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.rewrite import UNSHARED, explain_sharing, rewrite, to_passes
from autobatch.inspect.profiling import N_CALLS, Profile
from autobatch.inspect.report import Report, make_report
from autobatch.ir.precision import check_precision
from autobatch.keywords import checked, refuse, refuse_arguments, refusing
from autobatch.params.gradients import Gradients
from autobatch.params.module import Module, modules_in, shared_store
from autobatch.params.sparse_rows import Gradient
from autobatch.plan.budget import check_max_bytes
from autobatch.plan.plan import Planner
from autobatch.plan.plan_cache import DEFAULT_SIZE
from autobatch.schedule.schedule import Policy, adapt
from autobatch.system.locks import run_lock
from autobatch.trace.portable import check_portable
from autobatch.trace.record import list_instances
from autobatch.trace.results import list_results, stack_results
from autobatch.tracebacks import hide_frames

Array = NDArray[Any]
Number: TypeAlias = np.floating[Any]
Grads: TypeAlias = dict[str, Any]
"""Gradients by parameter: arrays, or `autobatch.Rows` of a table."""


class Batched(Session):
    """A function of one instance, run on mini-batches; made by `batched`.

    Thread-safe: calls from several threads run one after the other. `Session` and `Settings`, in `autobatch.engine`,
    list the attributes.
    """

    def __call__(self, instances: Iterable[Any]) -> Any:
        """Compute `[function(x) for x in instances]`, stacked.

        An async function runs in rounds, each of which computes the values that its instances wait for; see the
        tutorial `docs/tutorials/decode.md`.

        Args:
            instances: arguments of the function, or graphs from `record_all`. An iterator or a data set, unlike a list
                or other container, may reuse the same objects for the next instance. So the contents of arrays,
                tensors, buffers, containers and objects with attributes are copied on arrival. If the originals change
                before the last instance arrives, the instances that hold them are replaced by copies; all others stay
                the same objects. Views of dicts, ctypes arrays and the like cannot be copied; if they change, a
                DataError is raised. Pass a list to save the cost of the copies.

        Returns:
            The results of the function in its own structure, with arrays `(B, *shape)`; lists and their elements come
            back per instance. A number that is returned alone is a float. For no instances, an array of shape (0,).

        Raises:
            PlanError: a single instance needs more than `max_bytes`.
            GraphError: an instance of an async function is still waiting after `max_rounds`.
            DataError: instances from an iterator cannot be copied.
            Exception: any error of the function; the first one of an instance, unless `on_error` is "return".
        """
        try:
            call = self._call(instances, training=False)
            with run_lock(), call as step:
                if not step.graph.keys.size:
                    self.last = step.finish()
                    return self._result_store.xp.zeros(0, self.parameters.dtype)
                runs = self.run(step, to=self._result_store)
                columns = join_columns([run.outputs for run in runs])
                self._finish(call)
            may_fail = call.rounds is not None and self.options.on_error == "return"
            give = list_results if may_fail else self._stack_results
            return give(step.graph.structures, self._typed(columns))
        except Exception as error:
            hide_frames(error)
            raise

    _stack_results = staticmethod(stack_results)

    _result_store: Store = HOST  # the memory in which a call returns its results

    def results_of(self, structures: Sequence[Any], columns: list[Any]) -> list[Any]:
        """Return the results of the function for each of some instances.

        Args:
            structures: one per instance, from `autobatch.trace.results.read_result`.
            columns: the rows of each slot, in instance order.
        """
        return list_results(structures, self._typed(columns))

    @overload
    def value_and_grad(  # type: ignore[overload-overlap]  # a literal comes before other texts
        self,
        instances: Iterable[Any],
        reduce: Literal["none"],
        has_aux: Literal[False] = False,
        out: None = None,
        inputs: Literal[False] = False,
        *,
        only: Collection[str] | None = None,
        clip: None = None,
        max_norm: float = 1.0,
    ) -> tuple[Array, dict[str, Array]]: ...
    @overload
    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        has_aux: Literal[False] = False,
        out: dict[str, Gradient] | None = None,
        inputs: Literal[False] = False,
        *,
        only: Collection[str] | None = None,
        clip: Literal["per-instance"],
        max_norm: float = 1.0,
    ) -> tuple[Number, Gradients]: ...
    @overload
    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        has_aux: Literal[False] = False,
        out: dict[str, Gradient] | None = None,
        inputs: Literal[False] = False,
        *,
        only: Collection[str] | None = None,
        clip: str | None = None,
        max_norm: float = 1.0,
    ) -> tuple[Number, Grads]: ...
    @overload
    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        *,
        has_aux: Literal[True],
        out: dict[str, Gradient] | None = None,
        inputs: Literal[False] = False,
        only: Collection[str] | None = None,
        clip: str | None = None,
        max_norm: float = 1.0,
    ) -> tuple[tuple[Number, Any], Grads]: ...
    @overload
    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        *,
        has_aux: Literal[False] = False,
        out: dict[str, Gradient] | None = None,
        inputs: Literal[True],
        only: Collection[str] | None = None,
        clip: str | None = None,
        max_norm: float = 1.0,
    ) -> tuple[Number, Grads, list[Any]]: ...
    @overload
    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        has_aux: bool = False,
        out: dict[str, Gradient] | None = None,
        inputs: bool = False,
        *,
        only: Collection[str] | None = None,
        clip: str | None = None,
        max_norm: float = 1.0,
    ) -> Any: ...
    @refusing
    def value_and_grad(
        self,
        instances: Iterable[Any],
        reduce: str | Sequence[float] | Array = "mean",
        has_aux: bool = False,
        out: dict[str, Gradient] | None = None,
        inputs: bool = False,
        *,
        only: Collection[str] | None = None,
        clip: str | None = None,
        max_norm: float = 1.0,
        **wrong: Any,
    ) -> Any:
        """Compute the loss of a mini-batch and its gradients.

        Gradients treat the numbers that an async function awaited as constants.

        Args:
            instances: as for a call; the function returns a scalar value, or `(loss, aux)` with `has_aux`.
            reduce: "mean" or "sum" over instances, or weights of shape (B,); or "none" for the loss and the gradients
                of each instance.
            out: gradients to add to, as returned by an earlier call, or arrays. By default the call returns buffers of
                this thread, which its next call (also `explain(training=True)`) overwrites. `Rows` of a table that
                has since been read by other ops than `lookup` are replaced by an array.
            inputs: also differentiate with respect to the float arrays of the instances, which must not be recorded
                graphs. The function receives inputs in place of these arrays, see `autobatch.trace.inputs`.
            only: names of the trainable parameters to differentiate with respect to, with `reduce="none"` or `clip`;
                None for all.
            clip: "per-instance" to scale the gradient of each instance down to `max_norm` before they are summed: by
                min(1, max_norm / norm), where the norm is over all selected parameters and the loss has weight 1. The
                weights of `reduce` multiply the clipped gradients. Per-instance gradients are formed only where that
                takes less work than computing their norms directly, or where the norm needs them
                (`autobatch.backends.by_instance`).
            max_norm: with `clip`, a number above 0, in the units of the gradients.

        Returns:
            value, grads; or (value, aux), grads with `has_aux`. `grads` has a gradient for every trainable parameter,
            by name: an array (zero for an unused parameter), or `Rows` for a table that only `lookup` reads.

            If the parameters are on a device, the gradients are there too, and the call does not wait for it: `value`
            is a `Late`, a number that waits when it is read. A loss that is not finite is then reported when it is
            read, or at the next call; optimizers ignore its gradients.

            With `inputs`, a third element: a list of the instances, with each float array replaced by its gradient (of
            its shape and dtype, zero if unused), and each part without float arrays replaced by None.

            With `reduce="none"`, `value` is an array (B,), and each of `grads` a new array (B, *shape), also for a
            table: row b is the gradient of the loss of instance b alone. In a group of processes, B counts the
            instances of this process. The call waits for a device.

            With `clip`, `grads.norms` are the norms before clipping, float64 (B,), unless `out` was given.

        Raises:
            DataError: there are no instances, `out` cannot be written, a float array is in a set, deque or array, or
                arguments contradict each other.
            GraphError: the function did not return a scalar value, or the gradient of an input would be lost.
            ShapeError: `out` does not hold gradients of these parameters.
            NumericError: a loss is not finite; `out` is unchanged, unless the call did not wait: then optimizers ignore
                it. Or a norm to clip is not finite.
            PlanError: a single instance needs more than `max_bytes`, which with `reduce="none"` includes the gradients
                (B, *shape).
            DistributedError: in a group of processes (`autobatch.distributed`), whose gradients are summed, another
                process has ended or makes a different call.
        """
        if wrong:
            refuse(Batched.value_and_grad, wrong)
        group, each = ENTERED.group, None
        try:
            # Called in every step, so usual arguments skip the check against annotations.
            if not (type(has_aux) is type(inputs) is bool and type(max_norm) is float):
                flags = {"has_aux": has_aux, "inputs": inputs, "max_norm": max_norm}
                refuse_arguments(Batched.value_and_grad, (self, instances), flags)
            if clip is not None or only is not None or max_norm != 1.0 or (type(reduce) is str and reduce == "none"):
                from autobatch.engine.each_instance import each_instance

                given = {"only": only, "clip": clip, "max_norm": max_norm}
                refuse_arguments(Batched.value_and_grad, (self, instances), given)
                each = each_instance(reduce, only, clip, max_norm, out, inputs)
                reduce = reduce if clip is not None else "sum"
            request = GradientRequest(reduce, has_aux, out, inputs, each)
            if group is not None:
                return group.value_and_grad(self, instances, request)
            return self.differentiate(instances, request)
        except Exception as error:
            hide_frames(error)
            raise

    @checked(instances=None)
    def record_all(self, instances: Iterable[Any], progress: bool = False, workers: int = 1) -> list[Graph]:
        """Record each instance once, for use in many mini-batches.

        The instances of an async function are run, and the graphs hold the awaited numbers as constants.

        Args:
            instances: arguments of the function; those from an iterator are copied as in a call.
            progress: whether to show the progress, on standard error or in a notebook output.
            workers: number of processes that record; more than one pays off from some thousand instances on.

        Raises:
            DataError: `workers` is not a positive int.
            GraphError: several workers for an async function, whose instances run together; or something that a cell
                depends on cannot be found by its name in another process.
        """
        listed = list_instances(instances)
        show: Callable[[Iterable[Any]], Iterable[Any]] = iter
        if progress:
            from autobatch.display.progress import track

            show = partial(track, what="recording", n_items=len(listed))
        if type(workers) is not int or workers != 1:
            from autobatch.trace.workers import record_in_processes

            found = [*show(record_in_processes(self.recorder, listed, workers))]
        elif self.recorder.is_async:
            found = split_graph(self._record_rounds(listed))
        else:
            found = split_graph(self.recorder.record(show(listed)))
        return check_portable(self.recorder.of_now(found))

    @checked(instances=None)
    def prepare(self, instances: Iterable[Any], training: bool = False, has_aux: bool = False) -> Step:
        """Plan a mini-batch without running it; return its graph, and each part's schedule, plan and executable.

        Args:
            instances: as for a call.
            training: whether to plan the backward pass too.
            has_aux: as for `value_and_grad`, with `training`.

        Raises:
            GraphError: the function is async, so its mini-batches are planned while they run.
            PlanError: a single instance needs more than `max_bytes`.

        >>> import autobatch as ab
        >>> double = ab.batched(lambda x: 2.0 * x)
        >>> (part,) = double.prepare([np.ones(3), np.ones(3)]).parts
        >>> part.plan.schedule.n_batches, part.plan.size
        (1, 16)
        """
        call = self._call(instances, training, has_aux, measured=False)
        if call.minibatch.has_programs:
            raise GraphError(
                "the function of prepare must not be async, because its instances are planned while they run; pass "
                "graphs from record_all, or call explain."
            )
        with run_lock():
            return self.plan(call)

    @checked(instances=None)
    def explain(
        self,
        instances: Iterable[Any],
        training: bool = False,
        has_aux: bool = False,
        bound: str = "chain",
        memory: bool = False,
    ) -> Report:
        """Run a mini-batch and report nodes, batches, their bound and gap, launches, copies, memory and rewrites.

        The report also names the source lines that record single ops (one node each) outside cells.

        Args:
            instances: as for a call; recorded graphs have no source lines.
            training: whether to run the backward pass too; launches and copies are then the totals of both passes.
            has_aux: as for `value_and_grad`, with `training`.
            bound: "chain", or "pairs" for a better bound on the batches, which takes about a second.
            memory: whether to report the layout of values and the copies, too, for the largest part.

        Raises:
            PolicyError: the bound is unknown.
            PlanError: a single instance needs more than `max_bytes`.
        """
        from autobatch.inspect.lines import Lines
        from autobatch.memplan.report import report_memory
        from autobatch.policies.search.bounds import judge

        lines = Lines()
        with lines.noted(self.recorder.calls):
            call = self._call(instances, training, has_aux, measured=False, reports=True)
            with run_lock(), call as step:
                self._try_out(step, training)
                choice = self._thread_choice if call.rounds is None else None
                decided = "" if choice is None else choice.describe(call.minibatch, training)
                step = call.joined()
        judgements = [judge(part.plan.graph, part.plan.schedule, bound) for part in step.parts]
        largest = max(step.parts, key=lambda part: part.n_bytes)
        shown = report_memory(largest.plan, step.cells) if memory else None
        sharing = tuple(found for part in step.parts for found in explain_sharing(part.graph, self.rewrites))
        return make_report(
            step, self.policy, self.recorder.types, judgements, shown, self.precision, decided, sharing,
            lines.report(len(call.minibatch.instances)),
        )  # fmt: skip

    @checked(instances=None)
    def profile(
        self,
        instances: Iterable[Any] | None = None,
        training: bool = False,
        has_aux: bool = False,
        n_calls: int = N_CALLS,
    ) -> Profile:
        """Profile a call: milliseconds and bytes per stage and per batch, as a table and as a trace.

        Args:
            instances: run once, as for `explain`; None to profile the calls made while the profile is entered.
            training: whether to run the backward pass too.
            has_aux: as for `value_and_grad`, with `training`.
            n_calls: number of most recent calls to keep.

        Raises:
            DataError: `n_calls` is not a positive int.

        Cost: about a microsecond per batch.

        >>> import autobatch as ab
        >>> double = ab.batched(lambda x: 2.0 * x)
        >>> with double.profile() as profile:
        ...     _ = double([np.ones(3)]), double([np.ones(3)])
        >>> [list(profile.stage_ms()), len(profile.calls), profile.calls[0].batches[0].rows]
        [['record', 'layout', 'rewrite', 'schedule', 'place', 'forward'], 2, 1]
        """
        profile = Profile(self.recorder.types, n_calls, self._watch)
        if instances is not None:
            with profile:
                call = self._call(instances, training, has_aux)
                with run_lock(), call as step:
                    self._try_out(step, training)
                    self._finish(call)
        return profile

    @checked(instances=None)
    def merged(self, instances: Iterable[Any]) -> Graph:
        """Return the graph of a mini-batch as policies see it: recorded, merged and rewritten.

        For an async function, the graph holds the awaited numbers.

        Args:
            instances: as for a call.
        """
        minibatch = self.recorder.read(instances)
        is_async = minibatch.has_programs
        graph = self._record_rounds(minibatch.instances) if is_async else self.recorder.to_graph(minibatch)
        return rewrite(graph, self.rewrites)[0]

    @checked()
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
        """Learn a batching policy, a state machine, by Q-learning, and use it from now on.

        Args:
            minibatches: lists of instances, or of graphs from `record_all`; at least one. For an async function, the
                learner uses the graph of each round, and that of all rounds together.
            encoding: encoding of the ready nodes as a state: "base", "max" or "sort".
            seed: seed of the random choices; equal seeds give equal policies.
            held_out: mini-batches that select the best of the machines found during learning.
            online: whether to continue learning, from each mini-batch in which the machine meets an unknown state.
            progress: whether to show the progress, on standard error or in a notebook output.
            options: critical, mask, rival, reward, direction, compact, episodes, ...: see `ab.policies.learn`, whose
                defaults perform best. `**ab.policies.PUBLISHED` gives the settings published for ED-Batch.

        Returns:
            The policy. Its `save` writes it to a file, whose path is a policy for `ab.batched`.

        Raises:
            PolicyError: no mini-batch is given, or an option is unknown or out of range.

        Cost: about as long as planning the mini-batches `episodes` times (1000 by default) in each direction, and the
            same again for the machine as published, which is learned as well unless `rival=False`.
        """
        from autobatch.policies.fsm.qlearning import keep_learning
        from autobatch.policies.learning import learn

        graphs, held = (
            [one for batch in batches for one in self._scheduled_batch(batch)] for batches in (minibatches, held_out)
        )
        policy = learn(graphs, held_out=held, progress=progress, encoding=encoding, seed=seed, **options)
        if online:
            keep_learning(policy)
        self.policy = policy
        return policy

    def _scheduled_batch(self, instances: Iterable[Any]) -> list[Graph]:
        """Call `_scheduled`, and add a note to errors, because a flat list of instances may look like mini-batches."""
        listed = list_instances(
            instances, "each mini-batch of learn_policy", "pass a list of mini-batches, which are lists of instances"
        )
        try:
            return self._scheduled(listed)
        except Exception as error:
            error.add_note("while learn_policy recorded a mini-batch; it takes a list of mini-batches, which are lists")
            raise

    def _scheduled(self, instances: Iterable[Any]) -> list[Graph]:
        """Return the graphs of a mini-batch that policies schedule; for an async function, also those of each round."""
        call = self._call(instances, training=False, reports=True)
        if not call.minibatch.has_programs:
            return [rewrite(self.recorder.to_graph(call.minibatch), self.rewrites)[0]]
        with run_lock(), call:
            graphs = [part.plan.graph for part in call.joined().parts if part.plan.graph.n_nodes]
        return [*graphs, self.merged(call.minibatch.instances)]


@checked(
    function=None, module=None, policy=None, backend=None, threads=None, max_bytes=None, plan_cache=None,
    max_rounds=None, on_error=None, precision=None, rewrites=None, seed=None,
)  # fmt: skip
def batched(
    function: Callable[[Any], Any],
    *,
    module: Module | None = None,
    policy: str | Policy = "auto",
    backend: str | Backend = "auto",
    planner: Planner | None = None,
    rewrites: str | Sequence[str] = "auto",
    seed: int = 0,
    max_bytes: int | None = None,
    plan_cache: int = DEFAULT_SIZE,
    precision: str = "float32",
    threads: int | str = 1,
    max_rounds: int | None = None,
    on_error: str = "raise",
) -> Batched:
    """Turn a function of one instance into a function of mini-batches.

    Args:
        function: takes one instance and calls cells: a method of a `Module`, a `Module` or any other object with
            `__call__`, a `functools.partial`, or any function. An async function can await its own values, by
            `ab.value`.
        module: the owner of the parameters. By default the module that `function` is, or whose method it is; for any
            other object, the module among its attributes (for a partial, among its arguments) that contains all other
            modules there.
        policy: the batching policy: a name, the path of a saved policy, or a `Policy`; see `autobatch.policies.get`.
            "auto" selects a rule for the backend, `autobatch.policies.AUTO`.
        backend: the execution backend: a name, or a `Backend`. "auto" compiles cells for the CPU ("cpu"), in the
            background, while a new model's mini-batches are interpreted; or for the GPU ("cuda"), if the parameters
            were moved there.
        planner: the memory planner.
        rewrites: the passes that simplify the graph, see `autobatch.graph.rewrite`: their names; or "auto",
            which computes equal nodes of a mini-batch once where a rule expects this to pay off (not on a GPU, where
            products cost too little); or "all", which always does.
        seed: seed of random numbers (dropout, draws).
        max_bytes: memory limit for the values of a mini-batch, with their gradients in training: the memory that
            `explain` reports, without parameters and their gradients. Temporary values within one batch count too,
            except on the reference backend, which makes arrays for them. A larger mini-batch is run in parts, whose
            results equal those of the whole up to rounding.
        plan_cache: number of plans to keep. A mini-batch of recorded graphs with a cached plan is not planned again,
            even if its graphs are other objects with equal contents; its results are bit-identical. 0 keeps none.
        precision: precision of matrix products: "float32", meaning the module's own float type; or "bf16", for float32
            modules: both operands are rounded to 16 bits, sums and everything else are unchanged, see
            `autobatch.ir.precision`.
        threads: number of threads that share the tiles of batches (backend "cpu") or compute matrix products (other
            backends), at most the number of usable cores. "auto" compares one thread with more on the first
            mini-batches of each size, and returns to one when others need the cores, see `autobatch.engine.threads`.
        max_rounds: for an async function, the maximum number of rounds of a mini-batch; an instance that still waits
            afterwards gets an error. None for no limit. If all awaited values are known from earlier rounds, nothing
            is computed, and this does not count as a round; more than `max_rounds` of these in a row are an error too.
        on_error: for an async function, "raise" raises the first error of an instance and ends the others; "return"
            returns errors in place of results, as a list with one element per instance. Calls that compute gradients
            always raise.

    Thread-safe, also for concurrent training and inference. Runs of all functions and optimizer steps are serialized
    process-wide, first come first served, while other threads may record; see `autobatch.system.locks`. With
    `threads`, a call uses more cores.

    Raises:
        PolicyError, BackendError: the policy, backend, precision or number of threads is unknown or invalid.
        PlanError: `max_bytes`, `plan_cache` or `max_rounds` is out of range or not an int.
        GraphError: a rewrite is unknown, `function` is not callable, or `module` is not a `Module`.

    >>> import autobatch as ab
    >>> @ab.cell
    ... def double(x):
    ...     return 2.0 * x
    >>> ab.batched(lambda x: double(double(x)))([np.ones(2), np.zeros(2)])
    array([[4., 4.],
           [0., 0.]], dtype=float32)
    """
    from autobatch import policies
    from autobatch.memplan.planner import MemoryPlanner

    if module is None:
        module = _module_of(function)
    if not callable(function) or isinstance(function, type) or not isinstance(module, Module | None):
        raise GraphError(
            f"arguments of ab.batched must be a function of one instance and a Module or None, got {show(function)} "
            f"and {show(module)}; pass a method of a model, such as model.loss, or a model with __call__."
        )
    backend = make_backend(backend, HOST if module is None else shared_store(module))
    if isinstance(policy, str):
        policy = policies.get(policy, backend.name)
    max_bytes = check_max_bytes(max_bytes)
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise DataError(f"seed must be an int of at least 0, got {show(seed)}.")
    check_precision(precision, np.dtype(np.float32) if module is None else module.dtype, backend.name)
    if max_rounds is not None and (not is_int(max_rounds) or max_rounds < 0):
        raise PlanError(f"max_rounds must be an int of at least 0 or None, got {show(max_rounds)}.")
    if not isinstance(on_error, str) or on_error not in ("raise", "return"):
        raise PlanError(f"on_error must be 'raise' or 'return', got {show(on_error)}.")
    if isinstance(rewrites, str) and rewrites == "auto" and backend.name == "cuda":
        rewrites = UNSHARED
    options = Options(
        adapt(policy), to_passes(rewrites), precision, max_bytes=max_bytes, seed=int(seed), max_rounds=max_rounds,
        on_error=on_error,
    )  # fmt: skip
    return Batched(function, module, planner or MemoryPlanner(), backend, options, threads, plan_cache)


def _module_of(function: Any) -> Module | None:
    """Return the module at a function (see `_modules_at`) that contains all others there; None if there is none."""
    found = {id(module): module for module in _modules_at(function)}
    holding = [x for x in found.values() if found.keys() <= {id(part) for part in modules_in(x)}]
    return holding[0] if holding else None


def _modules_at(function: Any) -> list[Module]:
    """List the modules that a function is, is a method of, has as attributes or, for a partial, as arguments.

    A function that wraps another one and has no such owner stands for the wrapped one.
    """
    if isinstance(function, Module):
        return [function]
    if isinstance(function, partial):
        given = *function.args, *function.keywords.values()
        return [*_modules_at(function.func), *(x for x in given if isinstance(x, Module))]
    if not hasattr(function, "__self__") and hasattr(function, "__wrapped__"):
        return _modules_at(function.__wrapped__)
    owner = getattr(function, "__self__", function)
    held = (owner,) if isinstance(owner, Module) else getattr(owner, "__dict__", {}).values()
    return [x for x in held if isinstance(x, Module)]
