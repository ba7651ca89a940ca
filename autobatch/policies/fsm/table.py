"""The table of a state machine: a value for every state it has met and every type it may run there.

A state is a few small ints, an encoding of the ready nodes.

An encoding turns the frontier into a vector with an entry for each type; 0 if no node of the type is ready.

    base   1 for every ready type
    max    the same, and 2 for the type with the most ready nodes
    sort   the rank of the type by its ready nodes: 1 has the most

Among types with equal numbers of nodes the lowest id comes first. With `Machine.critical` the vector has a second half:
1 for every ready type that is critical (`native/schedule/chains.h`). Source: base, max and sort are ED-Batch's
(arXiv:2302.03851, section 2.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autobatch._native import add_states
from autobatch.arrays import IntArray

State: TypeAlias = NDArray[np.int16]
Encoding: TypeAlias = Literal["base", "max", "sort"]
ENCODINGS: tuple[Encoding, ...] = ("base", "max", "sort")
LISTED: Mapping[Encoding, str] = MappingProxyType(
    {"base": "ready types", "max": "ready types and the one with most nodes", "sort": "ready types, most nodes first"}
)
"""The content of a state's description, which heads its column in tables and drawings."""


def describe_state(state: Sequence[int], names: Sequence[str], encoding: Encoding) -> str:
    """Describe a state by the names of its types.

    Encoding "sort" gives "leaf > inner (critical)", "max" gives "leaf (most nodes), inner", and "base" "leaf, inner".
    """
    n = len(names)
    critical = state[n:] if len(state) > n else [0] * n
    shown = {}
    for a in (a for a in range(n) if state[a]):
        marks = ["most nodes"] * (encoding == "max" and state[a] == 2) + ["critical"] * bool(critical[a])
        shown[a] = f"{names[a]} ({', '.join(marks)})" if marks else names[a]
    if encoding == "sort":
        return " > ".join(shown[a] for a in sorted(shown, key=lambda a: state[a]))
    return ", ".join(shown.values())


class Table(NamedTuple):
    """S states in the order in which they were met, with room for more; found by hash."""

    states: NDArray[np.int16]  # [room, width]
    values: NDArray[np.float64]  # [room, T] the expected return of running the type
    updates: IntArray  # [room, T] number of updates of that value; 0: never tried
    slots: IntArray  # [power of two] numbers of states by hash, -1 for an empty slot
    n_states: IntArray  # [1]


def make_table(n_types: int, width: int, room: int = 64) -> Table:
    """Make an empty table for states of `width` ints."""
    return Table(
        np.zeros((room, width), np.int16),
        np.zeros((room, n_types)),
        np.zeros((room, n_types), np.int32),
        np.full(_n_slots(room), -1, np.int32),
        np.zeros(1, np.int32),
    )


def with_room(table: Table, n_more: int) -> Table:
    """Return a table with room for `n_more` more states: the table itself, or a larger copy."""
    n_states = int(table.n_states[0])
    room = n_states + n_more
    if room <= len(table.states):
        return table
    return _filled(table, n_states, max(room, 2 * len(table.states)))


def copy_table(table: Table) -> Table:
    """Copy a table, without spare room."""
    return _filled(table, int(table.n_states[0]), int(table.n_states[0]))


def widen_table(table: Table, n_types: int, width: int) -> Table:
    """Return the table for more types, numbered after the present ones and not ready in any known state."""
    n_states, n_old, n_parts = int(table.n_states[0]), table.values.shape[1], width // n_types
    wide = make_table(n_types, width, len(table.states))
    # A state has a part for ready types and perhaps one for critical types; each grows at its own end.
    states = np.zeros((n_states, n_parts, n_types), np.int16)
    states[:, :, :n_old] = table.states[:n_states].reshape(n_states, n_parts, n_old)
    add_states(wide, states.reshape(n_states, width))
    wide.values[:n_states, :n_old] = table.values[:n_states]
    wide.updates[:n_states, :n_old] = table.updates[:n_states]
    return wide


def _filled(table: Table, n_states: int, room: int) -> Table:
    copy = make_table(table.values.shape[1], table.states.shape[1], room)
    # States are distinct and added in order, so they keep their numbers, and rows of values can be copied.
    add_states(copy, table.states[:n_states])
    copy.values[:n_states] = table.values[:n_states]
    copy.updates[:n_states] = table.updates[:n_states]
    return copy


def _n_slots(room: int) -> int:
    # More than twice the room: at most half of the slots are taken, so that lookups are short.
    return 1 << max(4, (2 * room).bit_length())


def describe_table(table: Table, encoding: Encoding, names: Sequence[str]) -> list[dict[str, Any]]:
    """Describe a table with types by name, a row for each state."""
    rows = []
    for i in range(int(table.n_states[0])):
        tried = np.flatnonzero(table.updates[i]).tolist()
        values = {names[a]: [float(table.values[i, a]), int(table.updates[i, a])] for a in tried}
        rows.append({**name_state(table.states[i], encoding, names), "values": values})
    return rows


def rebuild_table(rows: Sequence[Mapping[str, Any]], encoding: Encoding, width: int, names: Sequence[str]) -> Table:
    """Rebuild a table with states of `width` ints from the rows of `describe_table`.

    Raises:
        ValueError, LookupError and others: the rows are malformed.
    """
    number = {name: a for a, name in enumerate(names)}
    table = make_table(len(names), width, max(1, len(rows)))
    states = [_number_state(row, encoding, width, number) for row in rows]
    numbers = add_states(table, np.array(states, np.int16).reshape(len(rows), width))
    for i, row in enumerate(rows):
        if numbers[i] != i:
            raise ValueError(f"state {i} is repeated")
        for name, (value, updates) in row["values"].items():
            table.values[i, number[name]], table.updates[i, number[name]] = value, updates
    return table


def name_state(state: State, encoding: Encoding, names: Sequence[str]) -> dict[str, Any]:
    """Describe a state by the names of the ready types, in the order of their ranks for "sort".

    >>> name_state(np.array([2, 0, 1, 0, 0, 1], np.int16), "sort", ["leaf", "loss", "merge"])
    {'ready': ['merge', 'leaf'], 'critical': ['merge']}
    """
    n, entries = len(names), state.tolist()
    ready = [a for a in range(n) if entries[a]]
    if encoding == "sort":
        ready.sort(key=lambda a: entries[a])
    named: dict[str, Any] = {"ready": [names[a] for a in ready]}
    if encoding == "max":
        named["largest"] = next((names[a] for a in ready if entries[a] == 2), None)
    if len(entries) > n:
        named["critical"] = [names[a] for a in range(n) if entries[n + a]]
    return named


def _number_state(row: Mapping[str, Any], encoding: Encoding, width: int, number: Mapping[str, int]) -> State:
    """Rebuild the state that `name_state` described."""
    state = np.zeros(width, np.int16)
    for rank, name in enumerate(row["ready"], 1):
        state[number[name]] = rank if encoding == "sort" else 1
    if encoding == "max" and row["largest"] is not None:
        state[number[row["largest"]]] = 2
    if width > len(number):
        for name in row["critical"]:
            state[len(number) + number[name]] = 1
    return state
