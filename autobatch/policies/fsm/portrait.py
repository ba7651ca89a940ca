"""Show a state machine: the choice in each state, and the transitions between states, as text or a drawing.

Transitions are not part of the machine; they are observed by running it on mini-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, reverse
from autobatch.graph.graph import Graph
from autobatch.jit.arrays import IntArray
from autobatch.jit.loops import compiled
from autobatch.policies.fsm.encoding import State, encode
from autobatch.policies.fsm.machine import WAYS, Fsm, Way, describe_state, run_machine
from autobatch.release import pip_install
from autobatch.schedule.chains import follow, start_chains
from autobatch.schedule.simulator import start, step

MAX_LABELS = 24  # labelled states of a drawing: the most visited
OFFSETS = (0.0, 0.15, -0.15, 0.3, -0.3)  # of states in their lane, so that labels do not overlap
NEW = "not learned"


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
        visits: by state.
        steps: by state, the sum of the positions of its visits in their schedules.
        runs: by state, the type that ran last.
        moves: by pairs of consecutive states.
        unseen: states that the machine had not learned.
    """

    visits: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    runs: dict[str, str] = field(default_factory=dict)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    unseen: set[str] = field(default_factory=set)


def ways_of(policy: Fsm) -> list[Way]:
    """List the directions in which a machine plans."""
    return [way for way in WAYS if policy.direction in (way, "both")]


def list_choices(policy: Fsm, way: Way) -> list[Choice]:
    """List the choice of the machine in each state, in the order in which it met them."""
    table, names = policy.tables[way], policy.types.names
    choices = []
    for i in range(int(table.n_states[0])):
        tried = np.flatnonzero(table.updates[i])
        if tried.size:
            type_id = int(tried[np.argmax(table.values[i, tried])])
            text = describe_state(table.states[i].tolist(), names, policy.machine.encoding)
            choices.append(
                Choice(text, names[type_id], float(table.values[i, type_id]), int(table.updates[i, type_id]))
            )
    return choices


def follow_machine(policy: Fsm, way: Way, graphs: Sequence[Graph]) -> Walk:
    """Run a machine on mini-batches, and record the states it goes through, without learning."""
    known = {choice.state for choice in list_choices(policy, way)}
    walk = Walk()
    for graph in graphs:
        dag = policy.to_known(graph)
        names = [*policy.types.names, *(NEW for _ in range(dag.n_types))]
        turned = dag if way == "forward" else reverse(dag)
        sequence = run_machine(turned, policy.tables[way], policy.machine.rules(), policy.weights)[0][0]
        width = policy.tables[way].states.shape[1]
        states = visit_states(turned, sequence, len(policy.types.names), policy.machine.rules().encoding, width)
        texts = [describe_state(row.tolist(), policy.types.names, policy.machine.encoding) or NEW for row in states]
        for place, (text, type_id) in enumerate(zip(texts, sequence.tolist(), strict=True)):
            walk.visits[text] += 1
            walk.steps[text] += place
            walk.runs[text] = names[type_id]
        walk.moves.update(pairwise(texts))
        walk.unseen.update(set(texts) - known)
    return walk


@compiled
def visit_states(dag: Dag, sequence: IntArray, n_known: int, encoding: int, width: int) -> State:
    """Run a sequence of types, and give the state before each: int16[K, width]."""
    sim = start(dag)
    chains = start_chains(dag, sim)
    states = np.zeros((sequence.size, width), np.int16)
    for k in range(sequence.size):
        encode(sim, chains, n_known, encoding, states[k])
        follow(chains, sim, step(sim, sequence[k]))
    return states


def draw_machine(policy: Fsm, graphs: Sequence[Graph], path: Path) -> None:
    """Draw a machine as observed on mini-batches: states, the type run in each, and transition counts.

    Args:
        policy: its directions get a drawing each.
        graphs: the mini-batches.
        path: ends in .dot, for Graphviz, or in .png.

    Raises:
        PolicyError: the path has another ending, the file cannot be written, or a package is missing.
    """
    walks = {way: follow_machine(policy, way, graphs) for way in ways_of(policy)}
    try:
        if path.suffix == ".dot":
            path.write_text("\n".join(to_dot(walks)) + "\n", encoding="utf-8")
        elif path.suffix == ".png":
            _plot(walks, path)
        else:
            raise PolicyError(
                f"cannot draw {str(path)!r}: its name ends neither in .dot nor in .png; name one of these."
            )
    except OSError as error:
        raise PolicyError(
            f"cannot draw {str(path)!r}: {error.strerror}; give a file in a folder that can be written."
        ) from error
    except ModuleNotFoundError as error:
        raise PolicyError(
            f"cannot draw {str(path)!r}: the package {error.name} is not installed; "
            f"{pip_install('plot')}, or name a .dot file."
        ) from error


def to_dot(walks: dict[Way, Walk]) -> list[str]:
    """Write lines of Graphviz's language."""
    lines = ["digraph policy {", "  node [shape=box, fontname=monospace];"]
    for way, walk in walks.items():
        number = {state: f"{way}{i}" for i, state in enumerate(walk.visits)}
        lines.append(f"  subgraph cluster_{way} {{")
        lines.append(f"    label={_quoted(way)};")
        for state, name in number.items():
            style = ", style=dashed" if state in walk.unseen else ""
            label = _quoted(f"{state}\nruns {walk.runs[state]}")
            lines.append(f"    {name} [label={label}{style}];")
        lines += [f"    {number[a]} -> {number[b]} [label={n}];" for (a, b), n in walk.moves.items()]
        lines.append("  }")
    return [*lines, "}"]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _plot(walks: dict[Way, Walk], path: Path) -> None:
    """Draw a lane per type; states are placed from left to right by their mean position in schedules."""
    import networkx as nx
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 6 * len(walks)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (way, walk) in zip(figure.subplots(len(walks), squeeze=False)[:, 0], walks.items(), strict=True):
        graph: Any = nx.DiGraph()
        graph.add_nodes_from(walk.visits)
        graph.add_weighted_edges_from((a, b, n) for (a, b), n in walk.moves.items())
        types = sorted(set(walk.runs.values()))
        in_lane = Counter[str]()
        places = {}
        for rank, state in enumerate(sorted(walk.visits, key=lambda state: walk.steps[state] / walk.visits[state])):
            type_name = walk.runs[state]
            places[state] = (rank, types.index(type_name) + OFFSETS[in_lane[type_name] % len(OFFSETS)])
            in_lane[type_name] += 1
        most = max(walk.moves.values(), default=1)
        colors = ["tab:orange" if state in walk.unseen else "tab:blue" for state in graph]
        sizes = [40 + 60 * np.sqrt(walk.visits[state]) for state in graph]
        nx.draw_networkx_nodes(graph, places, ax=axes, node_size=sizes, node_color=colors, alpha=0.8)
        widths = [0.3 + 2.5 * n / most for _, _, n in graph.edges(data="weight")]
        nx.draw_networkx_edges(
            graph, places, ax=axes, node_size=sizes, width=widths, alpha=0.4, connectionstyle="arc3,rad=0.15"
        )
        shown = {state: state for state, _ in walk.visits.most_common(MAX_LABELS)}
        nx.draw_networkx_labels(graph, places, shown, ax=axes, font_size=6, verticalalignment="bottom")
        axes.set_yticks(range(len(types)), types)
        axes.tick_params(left=True, labelleft=True, bottom=True, labelbottom=True)
        axes.set_xlabel("states, in the order of their mean place in schedules")
        axes.set_title(f"{way}: {len(walk.visits)} states, orange ones not learned; at each height the type that runs")
    figure.savefig(str(path), dpi=120)
