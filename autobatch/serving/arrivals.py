"""Programs at places of one growing graph: async ones are recorded phase by phase, the others in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from autobatch._native import stage
from autobatch.arrays import IntArray
from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.growing import NONE
from autobatch.trace.phases import Phases
from autobatch.trace.record import Recorder


class Result(NamedTuple):
    """The result of a program that has ended: its values, and the slot of each."""

    values: IntArray
    slots: list[int]


class Waiting(NamedTuple):
    """Programs that wait, by place.

    Attributes:
        awaited: the values that programs await, in the order of `asked`.
        places: the place of each.
        asked: the structures of the awaited values of each program that has not ended.
        results: the results of those that have, which may have to be computed.
    """

    awaited: IntArray
    places: IntArray
    asked: dict[int, Any]
    results: dict[int, Result]

    @property
    def is_empty(self) -> bool:
        return not self.asked and not self.results

    @property
    def values(self) -> IntArray:
        """Return all values that programs wait for."""
        return np.concatenate([self.awaited, *(result.values for result in self.results.values())])

    def joined(self, other: Self) -> Self:
        if self.is_empty:
            return other
        values, places = (np.concatenate(pair) for pair in zip(self[:2], other[:2], strict=True))
        return type(self)(values, places, self.asked | other.asked, self.results | other.results)

    def split(self, is_part: NDArray[np.bool_]) -> tuple[Self, Self]:
        """Return the programs at the places that are flagged, and the others."""
        parts = []
        for flags in (is_part, ~is_part):
            is_in, flagged = flags[self.places], flags.tolist()
            asked = {place: structure for place, structure in self.asked.items() if flagged[place]}
            results = {place: result for place, result in self.results.items() if flagged[place]}
            parts.append(
                self._replace(awaited=self.awaited[is_in], places=self.places[is_in], asked=asked, results=results)
            )
        return parts[0], parts[1]

    def renumbered(self, of_value: IntArray) -> Self:
        """Return the same programs after values got new numbers."""
        results = {place: Result(of_value[values], slots) for place, (values, slots) in self.results.items()}
        return self._replace(awaited=of_value[self.awaited], results=results)


NOBODY = Waiting(NONE, NONE, {}, {})


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

    def resume(self, places: list[int], renews: bool) -> tuple[Waiting, dict[int, BaseException]]:
        """Resume the async programs at the given places, in ascending order.

        Args:
            places: the places.
            renews: whether to look for changes of the Python state that cells read.

        Returns:
            The programs, and the errors of those that failed, by place.

        Raises:
            AutobatchError: a call is invalid; it is unknown which program made it.
        """
        if renews:
            self._recorder.renew()
        with self._recorder.patching():
            self._recorder.name_weights()
            values, ptr, over = self.go_on(places)
        owner = np.repeat(np.arange(len(ptr) - 1, dtype=np.int32), np.diff(ptr))
        if over:
            # The results of programs that have ended are held by `go_on`, so only awaited values are held here.
            is_awaited = np.ones(len(ptr) - 1, bool)
            is_awaited[over] = False
            is_awaited = is_awaited[owner]
            values, owner = values[is_awaited], owner[is_awaited]
        self.graph.hold(values, 1)
        errors = {place: self.programs[place].error for place in over}
        failed = {place: error for place, error in errors.items() if error is not None}
        results = {place: Result(*self.result(place)[:2]) for place in over if place not in failed}
        return Waiting(values, owner, self._asked, results), failed

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

    def take(self, graph: Graph, places: Sequence[int]) -> Waiting:
        """Append the instances of a recorded graph to the growing one; return them as programs that have ended.

        Args:
            graph: a recorded graph.
            places: the place of each of its instances.
        """
        before = self.graph.n_nodes
        self._learn_types()
        values = self.graph.append(graph, self.output_slots.rows)
        # `append` stored the positions of instances in the recorded graph, which are not their places.
        self.graph.owner[before:] = np.repeat(places, np.diff(graph.instance_ptr))
        self.graph.hold(values, 1)
        slots, ends = graph.out_slot.tolist(), graph.output_ptr.tolist()
        found = dict[int, Result]()
        for k, place in enumerate(places):
            own = slice(ends[k], ends[k + 1])
            self._structures[place] = graph.structures[k]
            found[place] = Result(values[own], slots[own])
        return Waiting(NONE, NONE, {}, found)

    @property
    def n_calls(self) -> int:
        """Return the number of calls of cells recorded since the recording began."""
        return self._calls.log.n_calls

    def compact(self) -> IntArray:
        """Drop nodes and values that cannot be read any more; return the new number of each value."""
        return super().compact() if self._recorder.is_async else self.graph.compact()[1]

    def end_at(self, place: int) -> None:
        if self._recorder.is_async:
            with stage(self._calls):
                self.programs[place].end(GraphError("the request was abandoned."))
