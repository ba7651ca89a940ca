"""Programs that arrive at places of one growing graph: async ones phase by phase, all others recorded at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.arrays import IntArray
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.ops.operators import stage
from autobatch.trace.phases import Phases
from autobatch.trace.record import Recorder


class Waiting(NamedTuple):
    """What a program waits for.

    Attributes:
        values: that it needs.
        slots: of each of them, if it has ended and they are its result; else None.
        asked: the structures of what its branches ask for, if it has not.
    """

    values: IntArray
    slots: list[int] | None
    asked: list[Any]


class Recorded(NamedTuple):
    """A recorded graph, and the places of its instances."""

    graph: Graph
    places: Sequence[int]


class Arrivals(Phases):
    """The programs of requests, each at a place, and all that they have recorded.

    What is recorded is held until it is answered.
    """

    def __init__(self, recorder: Recorder, n_places: int) -> None:
        super().__init__(recorder, n_places, caught=BaseException)
        self._given: dict[int, Any] = {}

    def arrive(self, place: int, instance: Any) -> None:
        """Begin the program of an instance at a free place."""
        if self._recorder.is_async:
            self.begin(place, instance)
        else:
            self._given[place] = instance

    def resume(self, places: Sequence[int]) -> tuple[dict[int, Waiting], dict[int, BaseException]]:
        """Let the async programs at some places, which ascend, go on; give what each waits for, or its error.

        Raises:
            AutobatchError: a call, it is not known of which.
        """
        waiting, failed = dict[int, Waiting](), dict[int, BaseException]()
        self._recorder.renew()
        with self._recorder.patching():
            phase = self.go_on(places)
        held = list[IntArray]()
        for place in places:
            program = self.programs[place]
            if program.error is not None:
                failed[place] = program.error
            elif program.is_over:
                waiting[place] = Waiting(*self.result(place)[:2], [])
            else:
                values = phase.values[phase.ptr[place] : phase.ptr[place + 1]]
                held.append(values)
                waiting[place] = Waiting(values, None, self._asked[place])
        if held:
            self.graph.hold(np.concatenate(held), 1)
        return waiting, failed

    def record(self, places: Sequence[int]) -> tuple[list[Recorded], dict[int, BaseException]]:
        """Record the programs at some places, which await nothing; if one of several fails, each alone."""
        try:
            graph = self._recorder.record([self._given[place] for place in places])
        except BaseException as error:
            if len(places) == 1:
                del self._given[places[0]]
                return [], {places[0]: error}
            recorded, failed = list[Recorded](), dict[int, BaseException]()
            for place in places:
                found = self.record([place])
                recorded += found[0]
                failed.update(found[1])
            return recorded, failed
        for place in places:
            del self._given[place]
        return [Recorded(graph, places)], {}

    def take(self, graph: Graph, places: Sequence[int]) -> dict[int, Waiting]:
        """Add the instances of a recorded graph to the growing one, each at a place; give what each waits for."""
        before = self.graph.n_nodes
        self._learn_types()
        self.graph.append(graph, self.output_slots.rows)
        self.graph.owner[before:] = np.repeat(places, np.diff(graph.instance_ptr))
        values = self.graph.values_of(before + graph.out_node, graph.out_port)
        self.graph.hold(values, 1)
        slots, ends = graph.out_slot.tolist(), graph.output_ptr.tolist()
        found = dict[int, Waiting]()
        for k, place in enumerate(places):
            own = slice(ends[k], ends[k + 1])
            self._structures[place] = graph.structures[k]
            found[place] = Waiting(values[own], slots[own], [])
        return found

    @property
    def n_calls(self) -> int:
        """Return the number of calls of cells recorded since the recording began."""
        return self._calls.log.n_calls

    def compact(self) -> IntArray:
        """Forget what nothing can read; give the new number of each value."""
        return super().compact() if self._recorder.is_async else self.graph.compact()[1]

    def end_at(self, place: int) -> None:
        """End the program at a place."""
        if self._recorder.is_async:
            with stage(self._calls):
                self.programs[place].end(GraphError("the request was given up."))
