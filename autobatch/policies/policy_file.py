"""A policy in a file: readable JSON, with one state of the machine a line and its types by name.

    {"ready": ["leaf", "merge"], "critical": ["leaf"], "values": {"leaf": [-3.25, 40], "merge": [-4.0, 7]}}

says that where leaves and merges are ready (leaves first, as the encoding "sort" ranks them), and leaf is critical,
running the leaves promises a return of -3.25, as 40 changes of that value found. A digest of the content tells an
edited file from one that was saved. To change a policy by hand, load it, change its tables, and save it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from autobatch.errors import PolicyError
from autobatch.policies.fsm.encoding import Encoding, State
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, Taught, TypeNames
from autobatch.policies.fsm.table import Table, add_state, make_table
from autobatch.policies.network import Deep, to_network
from autobatch.policies.rules.directed import Directed, Direction
from autobatch.policies.rules.rules import Score, Weights
from autobatch.system.cache import UNREADABLE
from autobatch.system.files import write_whole

FORMAT = "autobatch policy"
VERSION = 1
LINE_WIDTH = 110
ADVICE = "give a file that policy.save wrote"


def save_policy(policy: Directed, path: str | os.PathLike[str]) -> None:
    """Write a policy to a file, replacing one that is there only once all is written.

    Raises:
        PolicyError: as for `to_text`, or the file cannot be written; what was at `path` is still there.
    """
    doing = f"cannot save policy {os.fspath(path)!r}"
    text = to_text(policy, doing)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PolicyError(
            f"{doing}: {reason}; give a file in a folder that exists, can be written and has room."
        ) from error


def to_text(policy: Directed, doing: str) -> str:
    """Write what a file of a policy holds; `doing` begins messages.

    Raises:
        PolicyError: the policy has learned nothing, two types have one name, or something is not JSON.
    """
    kind = KINDS.get(policy.rule)
    if kind is None:
        raise PolicyError(f"{doing}: {policy.name!r} has learned nothing; it is made anew by its name.")
    if isinstance(policy, Fsm) and len(set(policy.types.names)) < len(policy.types.names):
        raise PolicyError(f"{doing}: two of its types have one name: {', '.join(policy.types.names)}; rename one.")
    content: dict[str, Any] = {"kind": policy.rule, "direction": policy.direction, "compact": policy.compact}
    content |= kind.describe(policy)
    content["about"] = policy.about
    try:
        plain = json.loads(json.dumps(content, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{doing}: what it holds is not JSON ({error}); look at its values and its about.") from error
    return f"{_lay_out({'format': FORMAT, 'version': VERSION, 'digest': _digest(plain), **plain})}\n"


def load(path: str | os.PathLike[str]) -> Directed:
    """Read a policy that `policy.save` wrote.

    Raises:
        PolicyError: the file is missing, unreadable, cut short, edited, of another format or of another version.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Score("both", compact=True).save(f"{folder}/rule.policy.json")
    ...     load(f"{folder}/rule.policy.json").name
    'score+both+compact'
    """
    doing = f"cannot load policy {os.fspath(path)!r}"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise PolicyError(f"{doing}: {(error.strerror or str(error)).lower()}; {ADVICE}.") from error
    except ValueError as error:
        raise PolicyError(f"{doing}: it is cut short or no JSON ({error}); {ADVICE}.") from error
    return from_text(text, doing)


def from_text(text: str, doing: str) -> Directed:
    """Read what `to_text` wrote; `doing` begins messages.

    Raises:
        PolicyError: it is cut short, edited, of another format or of another version.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{doing}: it is cut short or no JSON ({error}); {ADVICE}.") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise PolicyError(f"{doing}: it is JSON but no policy; {ADVICE}.")
    version = content.pop("version", None)
    if version != VERSION:
        raise PolicyError(
            f"{doing}: its format has version {version!r} and this autobatch reads {VERSION}; use the autobatch that "
            f"wrote it, or learn the policy again."
        )
    if content.pop("digest", None) != _digest(content):
        raise PolicyError(
            f"{doing}: its content is not what was saved, for its digest is another; give the file as policy.save "
            f"wrote it, or load, change and save the policy in Python."
        )
    try:
        return _rebuild(content)
    except (*UNREADABLE, PolicyError) as error:
        raise PolicyError(f"{doing}: its content makes no policy ({error!r}); learn the policy again.") from error


def _rebuild(content: Mapping[str, Any]) -> Directed:
    """Make the policy that a file describes; whatever is raised says what is wrong."""
    if content["kind"] not in KINDS:
        raise ValueError(f"kind {content['kind']!r} is none of {', '.join(KINDS)}")
    policy = KINDS[content["kind"]].rebuild(content, content["direction"], bool(content["compact"]))
    policy.about = dict(content["about"])
    return policy


def _describe_rule(policy: Any) -> dict[str, Any]:
    return {"weights": policy.weights._asdict()}


def _rebuild_rule(content: Mapping[str, Any], direction: Direction, compact: bool) -> Score:
    return Score(direction, compact, _rebuild_weights(content))


def _rebuild_weights(content: Mapping[str, Any]) -> Weights:
    weights = Weights(**{name: float(weight) for name, weight in content["weights"].items()})
    if not all(map(math.isfinite, weights)):
        raise ValueError(f"weights {weights} are not finite")
    return weights


def _describe_network(policy: Any) -> dict[str, Any]:
    return {"weights": {name: part.tolist() for name, part in policy.network._asdict().items()}}


def _rebuild_network(content: Mapping[str, Any], direction: Direction, compact: bool) -> Deep:
    return Deep(to_network(content["weights"]), direction=direction, compact=compact)


def _describe_machine(policy: Any) -> dict[str, Any]:
    names = policy.types.names
    first, *rivals = (_describe_taught(taught, names) for taught in policy.machines)
    return {
        **_describe_rule(policy),
        "types": [{"name": name, "outline": o} for name, o in zip(names, policy.types.outlines, strict=True)],
        **first,
        "rivals": rivals,
    }


def _describe_taught(taught: Taught, names: Sequence[str]) -> dict[str, Any]:
    machine, tables = taught
    return {
        "machine": {"encoding": machine.encoding, "critical": machine.critical, "mask": machine.mask},
        "tables": {way: _describe_table(tables[way], machine, names) for way in WAYS},
    }


def _rebuild_machine(content: Mapping[str, Any], direction: Direction, compact: bool) -> Fsm:
    kinds = content["types"]
    types = TypeNames(tuple(str(kind["name"]) for kind in kinds), tuple(str(kind["outline"]) for kind in kinds))
    machine, tables = _rebuild_taught(content, types.names)
    rivals = [_rebuild_taught(rival, types.names) for rival in content["rivals"]]
    return Fsm(machine, types, tables, direction, compact, weights=_rebuild_weights(content), rivals=rivals)


def _rebuild_taught(content: Mapping[str, Any], names: Sequence[str]) -> Taught:
    machine = Machine(**content["machine"])
    return Taught(machine, {way: _rebuild_table(content["tables"][way], machine, names) for way in WAYS})


class Kind(NamedTuple):
    """How one kind of policy is written as JSON, and made again of it."""

    describe: Callable[[Any], dict[str, Any]]
    rebuild: Callable[[Mapping[str, Any], Direction, bool], Directed]


KINDS = {
    Fsm.rule: Kind(_describe_machine, _rebuild_machine),
    Score.rule: Kind(_describe_rule, _rebuild_rule),
    Deep.rule: Kind(_describe_network, _rebuild_network),
}


def _describe_table(table: Table, machine: Machine, names: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for i in range(int(table.n_states[0])):
        tried = np.flatnonzero(table.updates[i]).tolist()
        values = {names[a]: [float(table.values[i, a]), int(table.updates[i, a])] for a in tried}
        rows.append({**name_state(table.states[i], machine.encoding, names), "values": values})
    return rows


def _rebuild_table(rows: Sequence[Mapping[str, Any]], machine: Machine, names: Sequence[str]) -> Table:
    number = {name: a for a, name in enumerate(names)}
    table = make_table(len(names), machine.width(len(names)), max(1, len(rows)))
    for i, row in enumerate(rows):
        if add_state(table, _number_state(row, machine, number)) != i:
            raise ValueError(f"state {i} comes twice")
        for name, (value, updates) in row["values"].items():
            table.values[i, number[name]], table.updates[i, number[name]] = value, updates
    return table


def name_state(state: State, encoding: Encoding, names: Sequence[str]) -> dict[str, Any]:
    """Write a state in the names of types: those that are ready, in the order of their ranks for "sort".

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


def _number_state(row: Mapping[str, Any], machine: Machine, number: Mapping[str, int]) -> State:
    """Read what `name_state` wrote."""
    state = np.zeros(machine.width(len(number)), np.int16)
    for rank, name in enumerate(row["ready"], 1):
        state[number[name]] = rank if machine.encoding == "sort" else 1
    if machine.encoding == "max" and row["largest"] is not None:
        state[number[row["largest"]]] = 2
    if machine.critical:
        for name in row["critical"]:
            state[len(number) + number[name]] = 1
    return state


def _digest(content: Mapping[str, Any]) -> str:
    """Sum up what is said, however it is laid out."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _lay_out(content: Any, indent: int = 0) -> str:
    """Write JSON in which whatever fits a line stands on one."""
    line = json.dumps(content, ensure_ascii=False)
    if indent + len(line) <= LINE_WIDTH or not isinstance(content, dict | list) or not content:
        return line
    if isinstance(content, dict) and content.keys() >= {"ready", "values"}:
        return line
    if isinstance(content, list) and all(isinstance(entry, float) for entry in content):
        return line
    pad = " " * (indent + 2)
    if isinstance(content, dict):
        parts = [f"{pad}{json.dumps(key, ensure_ascii=False)}: {_lay_out(v, indent + 2)}" for key, v in content.items()]
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _lay_out(v, indent + 2) for v in content) + "\n" + " " * indent + "]"
