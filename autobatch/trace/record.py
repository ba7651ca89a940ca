"""Recording: running the user's function over instances to record its calls of cells as a graph.

While a function is recorded, the native core handles all calls of cells (see `calls`): it appends a few ints to one log
and returns a handle. At the end it decodes the log into a `Graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import iscoroutinefunction
from operator import attrgetter, is_
from typing import Any, NamedTuple

import numpy as np

from autobatch._native import stage
from autobatch.arguments import refusal
from autobatch.arrays import IntArray, LongArray
from autobatch.errors import DataError, GraphError
from autobatch.graph.build import check_ranges, merge_graphs
from autobatch.graph.graph import Graph
from autobatch.graph.queued import QueuedBatch
from autobatch.ops.operators import STAGE, Operators
from autobatch.ops.taped import EagerTape
from autobatch.params.known import NO_PARAMETERS, KnownModule, ParameterState
from autobatch.params.module import Module
from autobatch.params.parameter import Parameter
from autobatch.system.locks import OF_TORCH, RenewedLock
from autobatch.trace.awaiting import refusal as refused_request
from autobatch.trace.calls import Calls
from autobatch.trace.guards import Live
from autobatch.trace.handles import Value
from autobatch.trace.inputs import FloatInput, Inputs
from autobatch.trace.kept import Kept
from autobatch.trace.owning import list_owned
from autobatch.trace.portable import PortableTypes, TypeTranslator
from autobatch.trace.results import REF, Known, Slot, SlotTable, read_result

ONE_INSTANCE = "for one instance pass [instance], and for the rows of an array list(array)"
ONE = (str, bytes, Mapping, Module, Graph, np.ndarray, Operators)
"""Iterable types that are one instance, or part of one, not a list of instances."""
WHILE = "while instance"  # begins the notes on errors
TOO_LONG = "ints among data must fit 32 bits, got a larger one; pass large numbers as floats."
TYPES = attrgetter("types")
GRAPHS = {Graph}
STALE = 1  # decoding failed because a value of another recording was used


class MiniBatch(NamedTuple):
    """The mini-batch of a call.

    Attributes:
        instances: the given instances.
        graph: the new graph of all instances; None if the instances are graphs themselves, or have async programs.
        inputs: the inputs of the instances, if gradients of their float arrays are wanted.
        has_programs: whether async programs will run the instances; nothing has been recorded of these.
        keys: for each instance of a share of a mini-batch that is not recorded yet, the key of its random numbers;
            None for the positions.
    """

    instances: list[Any]
    graph: Graph | None
    inputs: Inputs | None = None
    has_programs: bool = False
    keys: LongArray | None = None


class Recorder:
    """Records the programs of one function; its types, forms and handles live as long as the recorder.

    Args:
        function: takes one instance and calls cells.
        module: the owner of the parameters; calls of its cells and of its submodules' cells are recorded fastest.

    Attributes:
        known: the parameters and submodules of the module.
        is_async: whether the function is async, so its programs may wait for values.
        types: the node types met so far.
        n_states: number of changes of the module's submodules outside cells. After a change the function may run other
            code than for earlier graphs.
        on_forget: called when the module has permanently lost parameters or modules.
        kept: the tables of kept values, by slot.
        turn: the lock of its recordings.
    """

    def __init__(self, function: Callable[[Any], Any], module: Module | None) -> None:
        self.function, self.module = function, module
        self.known = None if module is None else KnownModule(module)
        self.is_async = iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)
        self.turn = RenewedLock() if module is None or module._patch is None else OF_TORCH
        self.slots = SlotTable()
        self._known_slots: dict[type[Value], tuple[int, Slot]] = {}
        self._known_tuples = Known()  # the structure and slots of tuples of values, by their classes
        methods, adopts = ((), None) if module is None else (module._value_methods(), module._adopt)
        patch = None if module is None else module._patch
        self.calls = Calls(methods, adopts, lambda: self._translator.write(), self.is_async, patch)
        self.types = self.calls.types
        self._translator = TypeTranslator(
            self.calls, self.slots, lambda: () if module is None else module._named_parts()
        )
        self.kept: dict[int, Kept] = {}  # the tables of kept values, by slot
        self._checked: tuple[Any, ...] = ()
        self._looked_at: dict[str, Parameter] = {}
        self._parameters: dict[str, Parameter] = {}
        self._bound: list[int] = []
        self.n_states = 0
        self._outline: Any = None
        self.on_forget: Callable[[], None] | None = None
        self._owners: Sequence[Any] = ()

    def record(self, instances: Iterable[Any], inputs: Inputs | None = None, keys: LongArray | None = None) -> Graph:
        """Run the function over `instances`; return their merged graphs, each instance's nodes contiguous.

        Other threads may call the module meanwhile.

        Args:
            inputs: the inputs of the instances, if gradients of their float arrays are wanted.
            keys: see `Graph`.

        Raises:
            GraphError: a value of another recording is used, or the number of a value is needed.
            DataError: an int does not fit 32 bits, or an id or label is outside its range.
            Exception: any error of the function, with a note that names the instance.
        """
        refuse_inside()
        self.renew()
        calls, traces, n_taken = self.calls, self.calls.traces, self.calls.traces.lives.n_taken
        refs, slots, structures, log_ptr, output_ptr = list[int](), list[int](), list[Any](), [0], [0]
        run = self.function if inputs is None else lambda instance: self.function(inputs.enter(instance))
        read = lambda result: self.read_result(result, refs, slots)  # noqa: E731
        pending = list(instances)
        with self.patching(), stage(calls):
            self.name_weights()
            calls.begin()
            while len(structures) < len(pending):
                # The first instance runs alone, and all do if guards have ever failed, because a change of state that a
                # later instance undoes is found only by a check in between.
                n = len(pending) if structures and not traces.n_renewed else len(structures) + 1
                try:
                    calls.log.run(
                        run, pending[:n], self._known_slots, read, refs, slots, structures, log_ptr, output_ptr
                    )
                except Exception as error:
                    explained = self.explain(error)
                    note_instance(explained, len(structures))
                    if explained is error:
                        raise
                    raise explained from None
                if n < len(pending):
                    self.check_unchanged(n_taken)
            graph = self.decode(log_ptr, refs, slots, output_ptr, tuple(structures))
        self.check_unchanged(n_taken)
        check_ranges(graph)
        if keys is not None:
            graph.keys = keys
        return graph

    def patching(self) -> AbstractContextManager[Any]:
        """Return a context that locks recordings of this function, and replaces the cells of torch modules."""
        self.parameters()  # before patching, as functions in place of cells look like a changed module
        return self.turn.lock if self.module is None or self.module._patch is None else self._of_patched_module()

    @contextmanager
    def _of_patched_module(self) -> Iterator[None]:
        with self.turn.lock, self._patched(), self._of_module():
            yield

    def name_weights(self) -> None:
        """Store the names of the parameters for the traces of a recording, within `patching`."""
        self.calls.traces.name_weights(self._looked_at)

    def _patched(self) -> AbstractContextManager[None]:
        """Return the context in which functions replace the cells of torch modules."""
        if self.module is None or self.calls.patches is None:
            return nullcontext()
        return self.calls.patches.applied(self.module._patches(), self.calls.entry)

    def _of_module(self) -> AbstractContextManager[Any]:
        """Return the context in which cells of the module are recorded and traced."""
        return nullcontext() if self.module is None else self.module._while_recording()

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters of the module, by name; forget recordings of removed ones."""
        if self.known is None:
            return {}
        found = self.known.parameters()
        if found is not self._looked_at:
            self._look(found)
        return found

    def parameter_state(self) -> ParameterState:
        """Return the state of the parameters of the module; forget recordings of removed ones, as `parameters` does."""
        found = NO_PARAMETERS if self.known is None else self.known.state()
        if found.all is not self._looked_at:
            self._look(found.all)
        return found

    def _look(self, found: dict[str, Parameter]) -> None:
        """Note the parameters of the module; forget recordings of removed ones."""
        if not self._are_as_before(found):
            self._forget(found)
        self._looked_at = found

    def _are_as_before(self, parameters: dict[str, Parameter]) -> bool:
        """Return whether the module is unchanged, so that no recording must be forgotten.

        This takes no lock: the module looks changed while another thread records it, and calls must not wait for that.
        """
        before, module = self._parameters, self.module
        return (
            [*before] == [*parameters]
            and all(map(is_, before.values(), parameters.values()))
            and self._bound == [p.n_bound for p in parameters.values()]
            and (module is None or [*map(id, module._owners())] == [*map(id, self._owners)])
            and (module is None or module._outline() == self._outline)
        )

    def _forget(self, parameters: dict[str, Parameter]) -> None:
        """Forget recordings that involve removed parameters or submodules.

        Cells that read rebound parameters are retraced.
        """
        with self.turn.lock, self._of_module():
            before, self._parameters = self._parameters, parameters
            bound = {id(p) for p, n in zip(before.values(), self._bound, strict=True) if p.n_bound != n}
            self._bound = [p.n_bound for p in parameters.values()]
            of_before, self._owners = self._owners, () if self.module is None else self.module._owners()
            outline = None if self.module is None else self.module._outline()
            self.n_states += self._outline is not None and outline != self._outline  # the first outline is not a change
            self._outline = outline
            # `before` and `of_before` keep removed objects alive meanwhile, so that no other object has one of their
            # ids.
            kept = {*map(id, parameters.values()), *map(id, self._owners)}
            gone = {id(x) for x in (*before.values(), *of_before) if id(x) not in kept}
            if gone or bound:
                # First, because `forget` retraces cells, whose programs hold these names.
                self.calls.traces.name_weights(parameters)
                self.calls.forget(gone, bound)
            if gone:
                self._translator.forget()
                if self.on_forget is not None:
                    self.on_forget()

    def refresh(self) -> ParameterState:
        """Update live numbers before a run, and retrace the cells that read something that has changed.

        Returns:
            The parameters of the module.

        Raises:
            GraphError: as for `check_parameters`.

        Cost: a few microseconds if nothing changed.
        """
        found, traces = self.parameter_state(), self.calls.traces
        if not (traces.known_guards or traces.guard_set).holds():
            self._retrace()
        lives = traces.lives
        if lives.known or found.dtype is not lives.dtype:
            lives.refresh(found.dtype)
        self.check_parameters()
        return found

    def renew(self) -> None:
        """Retrace the cells whose bodies read Python state that has changed."""
        traces = self.calls.traces
        if not (traces.known_guards or traces.guard_set).holds():
            self._retrace()

    def _retrace(self) -> None:
        with self.turn.lock, self._of_module():
            self.calls.traces.name_weights(self.parameters())
            self.calls.traces.renew()

    def check_unchanged(self, n_taken: int) -> None:
        """Raise a GraphError if the function changed state that cells read, as all nodes would use its last value."""
        traces = self.calls.traces
        if not (traces.known_guards or traces.guard_set).holds() or traces.lives.n_taken != n_taken:
            what = traces.changes() or "a number that a cell reads was changed"
            raise GraphError(
                f"state that a cell reads must be the same for all nodes of a mini-batch, but while instances were "
                f"recorded, {what}; pass it to the cell as an argument, or set it before the call."
            )

    def read(self, instances: Iterable[Any], inputs: bool = False, keys: LongArray | None = None) -> MiniBatch:
        """Record a mini-batch unless it consists of graphs, which `to_graph` merges.

        Args:
            inputs: whether gradients of the float arrays of the instances are wanted.
            keys: for each instance that is not recorded yet, the key of its random numbers; None for the positions.

        Raises:
            DataError: a single instance was given.
            GraphError: instances and graphs in one mini-batch, or graphs with `inputs`.
        """
        if STAGE.current is not None:
            refuse_inside()
        listed = list(instances) if type(instances) is list else list_instances(instances)
        kinds = {*map(type, listed)}
        # Only graphs recorded by this function: nothing to convert or record.
        if kinds == GRAPHS and {*map(TYPES, listed)} == {self.types} and not inputs:
            return MiniBatch(listed, None)
        n_kinds = sum([issubclass(kind, Graph) for kind in kinds])  # number of classes of graphs
        if n_kinds:
            listed = self.arrived(listed)
        if inputs and n_kinds:
            raise GraphError(
                "with inputs=True, instances must not be recorded graphs, which do not hold the arrays any more; pass "
                "the instances themselves."
            )
        found = Inputs(self.calls) if inputs else None
        if self.is_async and listed and not n_kinds:
            return MiniBatch(listed, None, found, True, keys)
        if found is not None:
            try:
                return MiniBatch(listed, self.record(listed, found, keys), found)
            finally:
                found.recording = None
        if n_kinds == len(kinds):
            return MiniBatch(listed, None)
        if n_kinds:
            raise GraphError(
                "a mini-batch must consist of recorded graphs or of instances, got both; pass one kind only."
            )
        return MiniBatch(listed, self.record(listed, keys=keys))

    def of_now(self, graphs: list[Graph]) -> list[Graph]:
        """Mark graphs as recorded in the current state of the module; return them."""
        for graph in graphs if self.n_states else ():
            graph.state = self.n_states
        return graphs

    def check_states(self, graphs: Sequence[Graph]) -> None:
        """Raise GraphError for graphs recorded when the module had other submodules outside its cells."""
        if self.n_states and any(graph.state != self.n_states for graph in graphs):
            raise GraphError(
                f"running recorded graphs: {self.module._kind.__name__} must have the same submodules "  # type: ignore[union-attr]
                f"outside cells as when they were recorded, got others; record the instances again."
            )

    def graphs_of(self, minibatch: MiniBatch) -> list[Graph]:
        """Return the graphs of a mini-batch, usually not merged yet.

        Raises:
            GraphError: the module has other submodules than when the graphs were recorded, or a cell has another
                signature.
        """
        if minibatch.graph is not None:
            graphs = [minibatch.graph]
        else:
            graphs = minibatch.instances
            self.check_states(graphs)
        if self.types.outdated:
            graphs = [merge_graphs(graphs, self.types)]
            self.types.check(graphs[0].type_id)
        return graphs

    def to_graph(self, minibatch: MiniBatch) -> Graph:
        """Return the merged graph of a mini-batch; see `graphs_of`."""
        return merge_graphs(self.graphs_of(minibatch), self.types)

    def arrived(self, instances: list[Any]) -> list[Any]:
        """Return the instances, with graphs from other processes converted to this one.

        A mini-batch that is planned ahead keeps the converted graphs until it runs.
        """
        if type(instances) is QueuedBatch:
            given, found = instances.plans.get(self, (None, None))
            if given != instances:  # graphs are compared by identity
                found = self._arrived([*instances])
                instances.plans[self] = [*instances], found
            twin = instances.shared()
            twin[:] = found
            return twin
        return self._arrived(instances)

    def _arrived(self, instances: list[Any]) -> list[Any]:
        tables = {x.types for x in instances if type(x) is Graph}
        portable = {types for types in tables if type(types) is PortableTypes}
        if not portable:
            return instances
        self.renew()
        self.parameters()
        memo: dict[int, Any] = {}
        with self.turn.lock:
            unknown = [types for types in portable if not self._translator.knows(types)]
            if unknown:
                with self._of_module(), stage(self.calls):
                    self.name_weights()
                    self.calls.begin()
                    for types in unknown:
                        self._translator.find(types, portable)
            found = [
                self._translator.renumber(x, memo) if type(x) is Graph and type(x.types) is PortableTypes else x
                for x in instances
            ]
        self.of_now([x for x, given in zip(found, instances, strict=True) if x is not given])
        return found

    def check_parameters(self) -> None:
        """Raise a GraphError if a cell reads a parameter that the module does not have, or has under another name."""
        types, parameters = self.types, self._looked_at
        before, checked = self._checked, (parameters, types.state, tuple(types.outdated))
        if before and before[0] is parameters and before[1:] == checked[1:]:
            return
        n_checked = 0
        if before and before[0] is parameters and before[2] == checked[2]:
            # New types are appended, so if the earlier traces are still the same, only the new types need a check.
            n_checked = len(before[1]) if before[1] == types.state[: len(before[1])] else 0
        known = {*map(id, parameters.values())}
        owner = "a module, but ab.batched was given none" if self.module is None else self.module._kind.__name__
        for node_type in types.types[n_checked:]:
            if node_type.number in types.outdated:
                continue
            for source in node_type.program.weights:
                parameter = source.parameter
                if not isinstance(parameter, (Kept, Live)) and id(parameter) not in known:
                    raise GraphError(
                        f"cell {node_type.name!r} reads {parameter!r}, which must be, and remain, a parameter of "
                        f"{owner}; pass module= with the module that has it."
                    )
        self._checked = checked

    def explain(self, error: BaseException) -> BaseException:
        """Return the error of a user's function, or a more informative one."""
        if isinstance(error, RecursionError):
            return GraphError(
                "recording an instance exceeded Python's recursion limit; check that calls of the function by itself "
                "end, raise the limit with sys.setrecursionlimit, or write the function with a loop."
            )
        if type(error) is RuntimeError and str(error) == "no running event loop":  # as asyncio.sleep raises
            return refused_request("a function of asyncio")
        if isinstance(error, AttributeError) and isinstance(error.obj, (Value, FloatInput)):
            error.args = (error.obj.lacks(str(error.name)),)  # a __getattr__ of values would slow down all reads
        return error

    def read_result(self, result: Any, refs: list[int], slots: list[int]) -> Any:
        """Append the refs and slots of the values in a function's result; return the structure."""
        kinds = tuple(map(type, result)) if type(result) is tuple else ()
        if kinds in self._known_tuples:
            structure, numbers = self._known_tuples[kinds]
            refs += map(REF, result)
            slots += numbers
            return structure
        if isinstance(result, (int, float, np.number)) and not isinstance(result, bool):
            result = np.asarray(float(result))
        wrapped = self.calls.wrapping.wrap(result, is_result=True)
        structure = read_result(wrapped, self.slots, refs, slots)
        if type(structure) is Slot:
            self._known_slots[type(wrapped)] = structure.number, structure
        elif wrapped is result and kinds and {*map(type, structure.children)} == {Slot}:
            self._known_tuples.keep(kinds, (structure, [slot.number for slot in structure.children]), len(kinds))
        return structure

    def decode(
        self, log_ptr: list[int], refs: list[int], slots: list[int], output_ptr: list[int],
        structures: tuple[Any, ...], owner: IntArray | None = None,
    ) -> Graph:  # fmt: skip
        """Make a graph from the log.

        Args:
            log_ptr, output_ptr: the start of each instance in the log, and in the refs and slots of results.
            owner: the instances of the nodes of earlier phases, which may be read; None for a recording without phases.
        """
        words, floats, fault = self.calls.log.decode(log_ptr, refs, slots, output_ptr, owner)
        if fault is not None:
            raise self._fault(*fault)
        return Graph(words, floats, self.types, structures)

    def _fault(self, status: int, instance: int, node: int, at: int) -> GraphError | DataError:
        where = f"the values that instance {instance} {'awaited or ' * self.is_async}returned"
        if node >= 0:
            name = self.calls.type_at(at).name
            where = f"instance {instance}, call {node} (cell {name!r})"
        if status == STALE:
            return GraphError(
                f"{where}: recorded values must be used within their own instance, got one from another recording; "
                f"compute it again there, or pass it as an array or Parameter."
            )
        return DataError(f"{where}: {TOO_LONG}")


def note_instance(error: BaseException, number: int, after: str = "") -> None:
    """Note on an error that it was raised while this instance was recorded; replace the note of an earlier raise."""
    others = [note for note in getattr(error, "__notes__", ()) if not note.startswith(WHILE)]
    error.__notes__ = [*others, f"{WHILE} {number} was recorded{after}"]


def noted_instance(error: BaseException) -> int | None:
    """Return the number of the instance that a note on an error names, if one does."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(WHILE)]
    return int(notes[0].removeprefix(WHILE).split()[0]) if notes else None


def refuse_inside() -> None:
    """Raise a GraphError if this thread records or traces, where a batched function must not be called."""
    if STAGE.current is not None:
        is_eager = isinstance(STAGE.current, EagerTape)
        raise GraphError(
            "a batched function must not be called inside a differentiated function; for gradients call its "
            "value_and_grad, and for per-instance gradients call ab.batched(ab.grad(function))."
            if is_eager
            else "a batched function must not be called inside a recorded or traced function; call its cells instead."
        )


def list_instances(instances: Iterable[Any], what: str = "a mini-batch", advice: str = ONE_INSTANCE) -> list[Any]:
    """Return the instances of a mini-batch, see `list_owned`; DataError for a single one, such as an array or a dict.

    Args:
        what: name of the mini-batch in the error message.
        advice: remedy in the error message.
    """
    if type(instances) is list:
        return list(instances)
    if type(instances) is QueuedBatch:
        return instances.shared()
    is_one = isinstance(instances, ONE) or (hasattr(instances, "shape") and hasattr(instances, "dtype"))
    if is_one or not isinstance(instances, Iterable):
        raise refusal(what, "a list of instances", instances, advice=advice)
    return list_owned(instances)
