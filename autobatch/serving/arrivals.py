"""Programs at places of one growing graph: async ones are recorded phase by phase, the others in one go."""

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
    """The values that a program waits for.

    Attributes:
        values: the values that it needs.
        slots: the slot of each value if the program has ended and they are its result; else None.
        asked: the structures of the values that its branches await, if it has not ended.
    """

    values: IntArray
    slots: list[int] | None
    asked: list[Any]


class Recorded(NamedTuple):
    """A recorded graph, and the places of its instances."""

    graph: Graph
    places: Sequence[int]


class Arrivals(Phases):
    """The programs of requests, each at a place, and their recorded graph.

    Recorded values are held until they are answered.
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
        """Resume the async programs at the given places, in ascending order.

        Returns:
            The values that each program waits for, and the errors of those that failed, by place.

        Raises:
            AutobatchError: a call is invalid; it is unknown which program made it.
        """
        waiting, failed = dict[int, Waiting](), dict[int, BaseException]()
        self._recorder.renew()
        with self._recorder.patching():
            self._recorder.name_weights()
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
        """Record the programs at the given places, which await nothing; if one of several fails, record each alone.

        Returns:
            The recorded graphs, and the errors of those that failed, by place.
        """
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
        """Append the instances of a recorded graph to the growing one; return the values that each waits for, by place.

        Args:
            graph: a recorded graph.
            places: the place of each of its instances.
        """
        before = self.graph.n_nodes
        self._learn_types()
        values = self.graph.append(graph, self.output_slots.rows)
        self.graph.owner[before:] = np.repeat(places, np.diff(graph.instance_ptr))
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
        """Drop nodes and values that cannot be read any more; return the new number of each value."""
        return super().compact() if self._recorder.is_async else self.graph.compact()[1]

    def end_at(self, place: int) -> None:
        """End the program at a place."""
        if self._recorder.is_async:
            with stage(self._calls):
                self.programs[place].end(GraphError("the request was abandoned."))
