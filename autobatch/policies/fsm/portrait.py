"""Draw a state machine: its states, the type run in each, and the transitions between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.machine import Fsm, Way
from autobatch.policies.fsm.walk import Walk
from autobatch.release import pip_install

MAX_LABELS = 24  # the most visited states have labels
OFFSETS = (0.0, 0.15, -0.15, 0.3, -0.3)  # from the middle of a lane, so that labels do not overlap


def draw_machine(policy: Fsm, graphs: Sequence[Graph], path: Path) -> None:
    """Draw a machine as observed on mini-batches: states, the type run in each, and transition counts.

    Args:
        policy: the policy; each of its directions gets a drawing.
        graphs: the mini-batches.
        path: the file to write, .dot for Graphviz or .png.

    Raises:
        PolicyError: the path has another ending, the file cannot be written, or a package is missing.
    """
    walks = {way: policy.follow(way, map(policy.to_known, graphs)) for way in policy.ways}
    try:
        if path.suffix == ".dot":
            path.write_text("\n".join(to_dot(walks)) + "\n", encoding="utf-8")
        elif path.suffix == ".png":
            _plot(walks, path)
        else:
            raise PolicyError(f"cannot draw {str(path)!r}: its name must end in .dot or .png.")
    except OSError as error:
        raise PolicyError(f"cannot draw {str(path)!r}: {error.strerror}; give a file in a writable folder.") from error
    except ModuleNotFoundError as error:
        raise PolicyError(
            f"cannot draw {str(path)!r}: the package {error.name} is not installed; "
            f"{pip_install('plot')}, or name a .dot file."
        ) from error


def to_dot(walks: dict[Way, Walk]) -> list[str]:
    """Return the lines of a Graphviz file."""
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
        axes.set_xlabel("states, in the order of their mean position in schedules")
        axes.set_title(f"{way}: {len(walk.visits)} states (orange: not learned), at the height of the type that runs")
    figure.savefig(str(path), dpi=120)
