"""Load policies from files: rebuild a policy from the content of its file, see `autobatch.policies.files`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.errors import PolicyError
from autobatch.policies.files import read_content, read_text
from autobatch.policies.fsm.encoding import State
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, Taught, TypeNames
from autobatch.policies.fsm.table import Table, add_state, make_table
from autobatch.policies.networks.network import Deep, to_network
from autobatch.policies.rules.directed import Directed, Direction
from autobatch.policies.rules.rules import Score, Weights
from autobatch.system.cache import UNREADABLE


def load(path: str | os.PathLike[str]) -> Directed:
    """Read a policy that `policy.save` wrote.

    Raises:
        PolicyError: the file is missing, unreadable, truncated, edited, of another format or of another version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Score("both", compact=True).save(f"{folder}/rule.policy.json")
    ...     load(f"{folder}/rule.policy.json").name
    'score+both+compact'
    """
    doing = f"cannot load policy {os.fspath(path)!r}"
    return from_text(read_text(path, doing), doing)


def from_text(text: str, doing: str) -> Directed:
    """Read a text written by `to_text`; `doing` begins error messages.

    Raises:
        PolicyError: it is truncated, edited, of another format or of another version.
    """
    content = read_content(text, doing)
    try:
        return _rebuild(content)
    except (*UNREADABLE, PolicyError) as error:
        raise PolicyError(f"{doing}: its content makes no policy ({error!r}); learn the policy again.") from error


def _rebuild(content: Mapping[str, Any]) -> Directed:
    """Make the policy that a file describes; exceptions of any type describe what is wrong."""
    if content["kind"] not in KINDS:
        raise ValueError(f"kind {content['kind']!r} is none of {', '.join(KINDS)}")
    policy = KINDS[content["kind"]](content, content["direction"], bool(content["compact"]))
    policy.about = dict(content["about"])
    return policy


def _rebuild_rule(content: Mapping[str, Any], direction: Direction, compact: bool) -> Score:
    return Score(direction, compact, _rebuild_weights(content))


def _rebuild_weights(content: Mapping[str, Any]) -> Weights:
    weights = Weights(**{name: float(weight) for name, weight in content["weights"].items()})
    if not all(map(math.isfinite, weights)):
        raise ValueError(f"weights {weights} are not finite")
    return weights


def _rebuild_network(content: Mapping[str, Any], direction: Direction, compact: bool) -> Deep:
    return Deep(to_network(content["weights"]), direction=direction, compact=compact)


def _rebuild_machine(content: Mapping[str, Any], direction: Direction, compact: bool) -> Fsm:
    kinds = content["types"]
    types = TypeNames(tuple(str(kind["name"]) for kind in kinds), tuple(str(kind["outline"]) for kind in kinds))
    machine, tables = _rebuild_taught(content, types.names)
    rivals = [_rebuild_taught(rival, types.names) for rival in content["rivals"]]
    return Fsm(machine, types, tables, direction, compact, weights=_rebuild_weights(content), rivals=rivals)


def _rebuild_taught(content: Mapping[str, Any], names: Sequence[str]) -> Taught:
    machine = Machine(**content["machine"])
    return Taught(machine, {way: _rebuild_table(content["tables"][way], machine, names) for way in WAYS})


KINDS: dict[str, Callable[[Mapping[str, Any], Direction, bool], Directed]] = {
    Fsm.rule: _rebuild_machine,
    Score.rule: _rebuild_rule,
    Deep.rule: _rebuild_network,
}


def _rebuild_table(rows: Sequence[Mapping[str, Any]], machine: Machine, names: Sequence[str]) -> Table:
    number = {name: a for a, name in enumerate(names)}
    table = make_table(len(names), machine.width(len(names)), max(1, len(rows)))
    for i, row in enumerate(rows):
        if add_state(table, _number_state(row, machine, number)) != i:
            raise ValueError(f"state {i} comes twice")
        for name, (value, updates) in row["values"].items():
            table.values[i, number[name]], table.updates[i, number[name]] = value, updates
    return table


def _number_state(row: Mapping[str, Any], machine: Machine, number: Mapping[str, int]) -> State:
    """Read a state written by `name_state`."""
    state = np.zeros(machine.width(len(number)), np.int16)
    for rank, name in enumerate(row["ready"], 1):
        state[number[name]] = rank if machine.encoding == "sort" else 1
    if machine.encoding == "max" and row["largest"] is not None:
        state[number[row["largest"]]] = 2
    if machine.critical:
        for name in row["critical"]:
            state[len(number) + number[name]] = 1
    return state
