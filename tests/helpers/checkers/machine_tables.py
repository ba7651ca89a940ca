"""The states of state machines, computed from the definitions."""

from __future__ import annotations

from autobatch.graph.dag import Dag
from autobatch.policies.fsm.table import Encoding, Table


def rows_of(table: Table) -> dict[tuple[int, ...], tuple[list[float], list[int]]]:
    n = int(table.n_states[0])
    rows = zip(table.states[:n].tolist(), table.values[:n].tolist(), table.updates[:n].tolist(), strict=True)
    return {tuple(state): (values, updates) for state, values, updates in rows}


def states_by_hand(dag: Dag, sequence: list[int], encoding: Encoding, critical: bool) -> list[list[int]]:
    """Return the state before each batch, finding paths and ready nodes from scratch each time."""
    sources = [dag.edge_src[dag.edge_ptr[n] : dag.edge_ptr[n + 1]].tolist() for n in range(dag.type_id.size)]
    done, states = set[int](), []
    for kind in sequence:
        left = [n for n in range(dag.type_id.size) if n not in done]
        ready = [n for n in left if set(sources[n]) <= done]
        counts = [sum(dag.type_id[n] == a for n in ready) for a in range(dag.n_types)]
        by_size = sorted((a for a in range(dag.n_types) if counts[a]), key=lambda a: (-counts[a], a))
        state = [int(count > 0) for count in counts]
        if encoding == "max" and by_size:
            state[by_size[0]] = 2
        if encoding == "sort":
            state = [by_size.index(a) + 1 if counts[a] else 0 for a in range(dag.n_types)]
        if critical:
            state += [
                int(counts[a] > 0 and is_critical_by_hand(dag, sources, left, ready, a)) for a in range(len(state))
            ]
        states.append(state)
        done.update(n for n in ready if dag.type_id[n] == kind)
    return states


def is_critical_by_hand(dag: Dag, sources: list[list[int]], left: list[int], ready: list[int], kind: int) -> bool:
    """Return whether all ready nodes at which a longest chain of this type starts have this type."""
    ahead = dict.fromkeys(left, 0)
    for n in reversed(left):
        after = [reader for reader in left if n in sources[reader]]
        ahead[n] = max((ahead[reader] for reader in after), default=0) + int(dag.type_id[n] == kind)
    most = max(ahead[n] for n in ready)
    return most > 0 and all(dag.type_id[n] == kind for n in ready if ahead[n] == most)
