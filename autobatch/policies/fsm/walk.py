"""Observe a state machine: its choice in each state, and the states that it visits on mini-batches.

Transitions are not part of a machine; they are observed by running it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autobatch._native import visit_states
from autobatch.arrays import IntArray
from autobatch.display.html import fold, write_lines, write_table
from autobatch.display.states import Drawing, DrawnState
from autobatch.graph.dag import Dag
from autobatch.policies.fsm.table import ENCODINGS, LISTED, Encoding, Table, describe_state

NEW = "not learned"
MOST_DRAWN = 30  # the most visited states are drawn


class Choice(NamedTuple):
    """The choice of a machine in a state: the type, its value, and the number of updates of that value."""

    state: str
    type_name: str
    value: float
    updates: int


@dataclass
class Walk:
    """The states and transitions of a machine on some mini-batches, in one direction.

    Attributes:
        visits: number of visits, by state.
        steps: by state, the sum of the positions of its visits in their schedules.
        runs: by state, the type that ran last.
        moves: number of transitions, by pairs of consecutive states.
        unseen: states that the machine had not learned.
    """

    visits: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    runs: dict[str, str] = field(default_factory=dict)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    unseen: set[str] = field(default_factory=set)

    def add(self, states: Sequence[str], runs: Sequence[str]) -> None:
        """Add a mini-batch: the state before each of its batches, and the type that ran."""
        for place, (state, type_name) in enumerate(zip(states, runs, strict=True)):
            self.visits[state] += 1
            self.steps[state] += place
            self.runs[state] = type_name
        self.moves.update(pairwise(states))

    def in_order(self) -> list[str]:
        """List the states in the order of their mean position in schedules."""
        return sorted(self.visits, key=lambda state: self.steps[state] / self.visits[state])

    def picture(self, names: Sequence[str], encoding: Encoding) -> Drawing:
        """Draw the most visited states; `names` of types give them their colors."""
        drawn = dict(self.visits.most_common(MOST_DRAWN))
        place = {state: number for number, state in enumerate(state for state in self.in_order() if state in drawn)}
        numbers = {name: number for number, name in enumerate([*names, NEW])}
        states = [
            DrawnState(state, (numbers[self.runs[state]], self.runs[state]), drawn[state], state not in self.unseen)
            for state in place
        ]
        moves = {(place[a], place[b]): n for (a, b), n in self.moves.items() if a in place and b in place}
        return Drawing(LISTED[encoding], states, moves)

    def share(self, picture: Drawing) -> str:
        """Describe the share of states and visits that a drawing shows; "" if it shows all."""
        n_visits = sum(state.visits for state in picture.states) / self.visits.total() if self.visits else 1.0
        shown, n = len(picture.states), len(self.visits)
        return f"the {shown} most visited of {n} states, {n_visits:.0%} of the visits" if shown < n else ""

    def write(self, names: Sequence[str], encoding: Encoding) -> str:
        """Write HTML with the drawing, and a table of all states if it cannot show them all."""
        picture = self.picture(names, encoding)
        share = self.share(picture)
        if not share:
            return picture.svg()
        rows = [(state, self.runs[state], f"{self.visits[state]:,}") for state in self.in_order()]
        table = write_table((LISTED[encoding], "runs", "visits"), rows)
        return write_lines([share]) + picture.svg() + fold(f"all {len(rows)} states", table)


def list_choices(table: Table, names: Sequence[str], encoding: Encoding) -> list[Choice]:
    """List the choice in each state of a table, in the order in which the machine met them."""
    choices = []
    for i in range(int(table.n_states[0])):
        tried = np.flatnonzero(table.updates[i])
        if tried.size:
            type_id = int(tried[np.argmax(table.values[i, tried])])
            text = describe_state(table.states[i].tolist(), names, encoding)
            choices.append(
                Choice(text, names[type_id], float(table.values[i, type_id]), int(table.updates[i, type_id]))
            )
    return choices


def list_states(dag: Dag, sequence: IntArray, names: Sequence[str], encoding: Encoding, width: int) -> list[str]:
    """Run a sequence of types, and describe the state of `width` ints before each."""
    rows = visit_states(dag, sequence, len(names), (ENCODINGS.index(encoding), 0), width)
    return [describe_state(row.tolist(), names, encoding) or NEW for row in rows]  # empty if only new types are ready
