"""The table of a state machine: a value for every state it has met and every type it may run there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch._native import add_states
from autobatch.arrays import IntArray
from autobatch.policies.fsm.encoding import Encoding, State


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
    states = np.zeros((n_states, n_parts, n_types), np.int16)
    states[:, :, :n_old] = table.states[:n_states].reshape(n_states, n_parts, n_old)
    add_states(wide, states.reshape(n_states, width))
    wide.values[:n_states, :n_old] = table.values[:n_states]
    wide.updates[:n_states, :n_old] = table.updates[:n_states]
    return wide


def _filled(table: Table, n_states: int, room: int) -> Table:
    copy = make_table(table.values.shape[1], table.states.shape[1], room)
    add_states(copy, table.states[:n_states])
    copy.values[:n_states] = table.values[:n_states]
    copy.updates[:n_states] = table.updates[:n_states]
    return copy


def _n_slots(room: int) -> int:
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
