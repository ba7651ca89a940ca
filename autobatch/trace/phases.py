"""Record the async programs of a mini-batch in phases; in each phase, every program runs until it waits for a value.

    advance()          runs every program until it waits or has ended; returns the awaited values
    answer(numbers)    gives the programs the numbers of these values

All phases record into one growing graph (`autobatch.graph.growing`); between phases, a round runs a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from autobatch._native import stage
from autobatch.arrays import IntArray, LongArray
from autobatch.errors import AutobatchError
from autobatch.graph.build import find_out_of_range
from autobatch.graph.graph import Graph
from autobatch.graph.growing import NONE, NOWHERE, SLOT, GrowingGraph, OutputSlots, Results
from autobatch.ir.arguments import Static
from autobatch.ir.program import dtype_of, int_limit
from autobatch.ops.define import Shape
from autobatch.trace.awaiting import Asked
from autobatch.trace.driving import Branch, Program
from autobatch.trace.inputs import Inputs
from autobatch.trace.kept import Kept
from autobatch.trace.record import Recorder, note_instance, refuse_inside
from autobatch.trace.results import INT, Slot, read_result

NO_PROGRAM: Any = None
AWAITED = "value[]"  # the path of the slots of kept values, one for each shape


@contextmanager
def record_in_phases(
    recorder: Recorder, instances: Sequence[Any], inputs: Inputs | None = None, keys: LongArray | None = None
) -> Iterator[Phases]:
    """Record the async programs of instances within the context; leaving it ends them.

    Args:
        inputs: the inputs of the instances, if gradients of their float arrays are wanted.
        keys: for each instance, the key of its random numbers; None for the positions.

    Raises:
        GraphError: the programs changed Python state that cells read.
    """
    refuse_inside()
    recorder.renew()
    n_taken = recorder.calls.traces.lives.n_taken
    with recorder.patching():
        recorder.name_weights()
        try:
            with closing(Phases(recorder, len(instances), inputs, keys)) as phases:
                try:
                    for place, instance in enumerate(instances):
                        phases.begin(place, instance)
                    yield phases
                except BaseException as error:
                    phases.end(error)
                    raise
        finally:
            if inputs is not None:
                inputs.recording = None
    recorder.check_unchanged(n_taken)


class Phase(NamedTuple):
    """The record of one phase: each program ran until it waits or has ended.

    Attributes:
        values: the values that programs wait for or have returned.
        ptr: the first of the values of each place.
        over: the places of the programs that have ended.
    """

    values: IntArray
    ptr: list[int]
    over: list[int]


class Phases:
    """The programs of a mini-batch, each at a place, and their recorded nodes.

    Args:
        recorder: the recorder of their function; it is recording.
        n_places: number of places.
        inputs: replaces instances by copies with inputs; None without inputs.
        keys: for each place, the key of its random numbers; None for the positions.
        caught: class of errors that end only the program that raised them.

    Attributes:
        graph: the graph recorded so far.
        programs: one program for each place.
        output_slots: the slots and rows of the outputs of all types, and the types that read from slots.
        int_slots: the slots of kept values that are ints.
    """

    def __init__(
        self, recorder: Recorder, n_places: int, inputs: Inputs | None = None, keys: LongArray | None = None,
        caught: type[BaseException] = Exception,
    ) -> None:  # fmt: skip
        self._recorder, self._calls, self._inputs, self._caught = recorder, recorder.calls, inputs, caught
        self.graph = GrowingGraph(n_places, keys)
        self.output_slots = OutputSlots(*(np.zeros(0, np.int32) for _ in OutputSlots._fields))
        self.int_slots = set[int]()
        self._structures: list[Any] = [None] * n_places
        self._results: list[tuple[IntArray, list[int]]] = [(np.zeros(0, np.int32), [])] * n_places
        self._asked = dict[int, Any]()
        self._wanted: list[IntArray] = []
        self._slot_of: dict[type, int] = {}  # by class of values
        self._switch_mode = None if recorder.module is None else recorder.module._switch_mode
        self.programs: list[Program] = [NO_PROGRAM] * n_places
        self._active = list(range(n_places))
        self._calls.begin()
        # The core plans a round without Python only if it knows the types of all sources, so tell it those that exist.
        self._learn_sources([slot for slot, table in recorder.kept.items() if self._calls.has_kept_type(table)])

    def begin(self, place: int, instance: Any) -> None:
        """Begin the program of an instance."""
        try:
            given = instance if self._inputs is None else self._inputs.enter(instance)
            self.programs[place] = Program(self._recorder.function(given), self._switch_mode, self._caught)
        except Exception as error:
            note_instance(error, place)
            raise

    @property
    def is_over(self) -> bool:
        return not self._active

    @property
    def waiting(self) -> list[int]:
        """List the instances whose programs wait."""
        return self._active

    def advance(self) -> IntArray:
        """Run the programs until each waits or has ended; return the awaited values, ordered by program.

        Raises:
            GraphError, DataError: as `Recorder.record`. Errors of programs are stored there instead.
        """
        values, ptr, over = self.go_on(self._active)
        if over:
            is_wanted = np.ones(values.size, bool)
            for i in over:
                is_wanted[ptr[i] : ptr[i + 1]] = False
            values = values[is_wanted]
            self._active = [*self._asked]
        self._wanted.append(values)
        return values

    def go_on(self, places: list[int]) -> Phase:
        """Run the programs at some places until each waits or has ended; hold the results of those that have ended.

        Args:
            places: the places, in ascending order.

        Raises:
            As `advance`.
        """
        calls, programs = self._calls, self.programs
        calls.start_phase()
        refs, slots, log_ptr, output_ptr = list[int](), list[int](), [0], [0]
        over, asked = list[int](), dict[int, Any]()

        def go_on_in_python(place: int) -> None:
            program = programs[place]
            program.advance(calls.log)
            if not program.is_over:
                n_refs = len(refs)
                try:
                    asked[place] = self._read(program.waiting, refs, slots)
                    return
                except AutobatchError as error:
                    del refs[n_refs:], slots[n_refs:]  # of values read before the error
                    program.fail(error)
            over.append(place)
            self._structures[place] = self._finish(program, refs, slots)

        with stage(calls):
            calls.log.advance(
                programs, places, self._slot_of, self._caught, go_on_in_python, refs, slots, log_ptr,
                output_ptr, asked,
            )  # fmt: skip
        structures = (None,) * len(self.programs)
        phase = self._recorder.decode(log_ptr, refs, slots, output_ptr, structures, self.graph.owner)
        if errors := find_out_of_range(phase):
            with stage(calls):
                for i, outside in errors.items():
                    programs[i].fail(outside)
                    self._structures[i] = Static(outside)
                    if i in asked:
                        del asked[i]
                        over.append(i)
        self._asked = asked
        before = self.graph.n_nodes
        # Before `append`, which needs the rows of the outputs of all types in the phase.
        self._learn_types()
        values = self.graph.append(phase, self.output_slots.rows)
        if calls.tapes:
            self.graph.use(np.arange(before, self.graph.n_nodes, dtype=np.int32))
        for i in over:
            if programs[i].error is None:
                own = slice(output_ptr[i], output_ptr[i + 1])
                # Results are read after the program has dropped their handles, so they count as readers.
                self._results[i] = values[own], slots[own]
                self.graph.hold(values[own], 1)
        self._sweep(over)
        return Phase(values, output_ptr, over)

    def answer(self, numbers: Sequence[Any], asked: dict[int, Any] | None = None) -> None:
        """Give programs the numbers that they wait for.

        Args:
            numbers: the numbers, in the order of the values that `advance` returned, or of `asked`.
            asked: the structures of the requests at each place, see `_read`; None for all programs that wait.
        """
        asked = self._asked if asked is None else asked
        self._calls.log.answer(self.programs, asked, numbers, self._answer_branches)

    def _answer_branches(self, place: int, structures: list[Any], left: Iterator[Any]) -> None:
        """Give the branches of a program their numbers, the next ones of `left`."""
        shapes = self._recorder.slots.shapes
        self.programs[place].answer([_fill(structure, left, shapes) for structure in structures])

    def result(self, place: int) -> tuple[IntArray, list[int], Any]:
        """Return the results of the program at a place: values, slots and structure."""
        return *self._results[place], self._structures[place]

    def compact(self) -> IntArray:
        """Drop the nodes that have run and cannot be read any more; return the new number of each value."""
        of_node, of_value = self.graph.compact()
        self._calls.log.renumber(of_node)
        return of_value

    def results(self) -> tuple[Results, list[Any]]:
        """Return the results of all programs, and their structures."""
        values = [own for own, _ in self._results]
        ptr = np.concatenate(([0], np.cumsum([own.size for own in values]))).astype(np.int32)
        slots = np.array([slot for _, own in self._results for slot in own], np.int32)
        return Results(np.concatenate(values).astype(np.int32), slots, ptr), self._structures

    def whole(self, with_awaited: bool) -> Graph:
        """Emit the graph of all nodes that the results depend on; it holds the numbers that programs awaited.

        Args:
            with_awaited: whether to include the nodes that only awaited numbers depend on.
        """
        results, structures = self.results()
        needed = np.concatenate((results.values, *self._wanted)) if with_awaited else results.values
        return self.graph.emit_whole(needed, self.output_slots, results, self._recorder.types, structures)

    def table_of(self, slot: int) -> Kept:
        """Return the table of the kept values of a slot."""
        tables = self._recorder.kept
        if slot not in tables:
            tables[slot] = Kept(self._recorder.slots.shapes[slot])
        return tables[slot]

    def make_source_types(self, values: IntArray) -> None:
        """Make the types of the nodes that read these values from the tables of kept values."""
        self._learn_sources(np.bincount(self.graph.values[SLOT, values]).nonzero()[0].tolist())

    def give_up(self, error_of: Callable[[int], Exception]) -> None:
        """End the programs that still wait, each with an error in place of its result."""
        with stage(self._calls):
            for i in self._active:
                error = error_of(i)
                self.programs[i].fail(error)
                self._structures[i] = Static(error)
        self._active = []

    def end(self, error: BaseException) -> None:
        """End all programs because of an error; records of cells that their `finally` blocks call are discarded."""
        with stage(self._calls):
            for program in self.programs:
                if program is not NO_PROGRAM:
                    program.end(error)

    def close(self) -> None:
        """Leave the recording, whose values become invalid."""
        self._calls.begin()

    def _finish(self, program: Program, refs: list[int], numbers: list[int]) -> Any:
        """Read the result of a program and drop it; return its structure, or the error, explained if possible."""
        result, program.result = program.result, None
        if program.error is None:
            try:
                return self._recorder.read_result(result, refs, numbers)
            except AutobatchError as error:
                program.error = error
        program.error = self._recorder.explain(program.error)
        return Static(program.error)

    def _read(self, waiting: list[tuple[Branch, Asked]], refs: list[int], slots: list[int]) -> list[Any]:
        """Read the values that branches request, and drop them; return their structures.

        The structure of one value is None, and the structure of a tuple of values is its length, as in the core.
        """
        structures = list[Any]()
        for _, asked in waiting:
            structure = self._calls.log.read_request(asked, self._slot_of, refs, slots)
            if structure is NotImplemented:
                values, asked.values = asked.values, None  # the request keeps nothing alive
                structure = read_result(values, self._recorder.slots, refs, slots, AWAITED)
                self._learn_slots(values, structure)
            structures.append(structure)
        return structures

    def _learn_slots(self, values: Any, structure: Any) -> None:
        """Store the slots of the classes of values, which belong to one recording and have one slot."""
        if type(structure) is Slot:
            self._slot_of[type(values)] = structure.number
        elif type(values) is tuple and all(type(child) is Slot for child in structure.children):
            self._slot_of.update(zip(map(type, values), (slot.number for slot in structure.children), strict=True))

    def _sweep(self, over: list[int]) -> None:
        """Mark the nodes that programs may still use; all, as long as derivatives may be recorded."""
        graph = self.graph
        if not self._calls.tapes:
            graph.use(*self._calls.log.sweep())
        if over:
            graph.use(NONE, graph.nodes_of(over))

    def _learn_sources(self, slots: Sequence[int]) -> None:
        """Store the types of the nodes that read from the tables of these slots; make missing ones."""
        source = self.output_slots.source
        if source.size < len(self._recorder.slots.shapes):
            grown = np.full(len(self._recorder.slots.shapes), NOWHERE, np.int32)
            grown[: source.size] = source
            self.output_slots, source = self.output_slots._replace(source=grown), grown
        for slot in slots:
            if source[slot] == NOWHERE:
                source[slot] = self._calls.kept_type(self.table_of(slot))

    def _learn_types(self) -> None:
        """Store the slots of the outputs of new types."""
        types, slots = self._recorder.types, self._recorder.slots
        before, arrays = self.output_slots.slot.size, types.arrays()
        if arrays.out_ptr[-1] == before:
            return
        found, rows = list[int](), list[int]()
        # Outputs are numbered in the order of types, so the new ones belong to the last types.
        for type_id in range(int(np.searchsorted(arrays.out_ptr, before)), len(arrays.out_ptr) - 1):
            program = types[type_id].program
            for output in program.outputs:
                dtype = INT if int_limit(program.vars, output) else dtype_of(program.vars, output)
                slot = slots.slot(AWAITED, program.vars[output].shape, dtype)
                found.append(slot.number)
                rows.append(max(program.vars[output].domain, NOWHERE))  # NODE and SHARED are single values
                if slot.dtype == INT:
                    self.int_slots.add(slot.number)
        known, new = self.output_slots, np.array((found, rows), np.int32)
        self.output_slots = OutputSlots(
            np.concatenate((known.slot, new[0])), np.concatenate((known.rows, new[1])), known.source
        )
        self._learn_sources(())  # covers new slots


def _fill(structure: Any, numbers: Iterator[Any], shapes: Sequence[Shape]) -> Any:
    """Build a structure in which numbers take the place of slots."""
    if structure is None or type(structure) is Slot:
        return next(numbers)
    if type(structure) is int:
        return tuple(islice(numbers, structure))
    if type(structure) is Static:
        return structure.value
    if structure.kind == "rows":
        (slot,) = structure.children
        return np.array([next(numbers) for _ in range(structure.detail)]).reshape(-1, *shapes[slot.number])
    return structure.build([_fill(child, numbers, shapes) for child in structure.children])
