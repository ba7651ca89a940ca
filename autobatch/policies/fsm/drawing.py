"""Draw a state machine: its states, the type run in each, and the transitions between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.keywords import checked
from autobatch.policies.fsm.machine import Fsm, Way
from autobatch.release import pip_install

if TYPE_CHECKING:
    from autobatch.policies.fsm.walk import Walk

PER_INCH = 72  # pixels, so that a font size in points is also one in pixels
SHARPNESS = 2  # pixels of the file per pixel of the drawing
TITLE = 24  # height of a title, in pixels


@checked(policy=PolicyError, graphs=PolicyError, path=PolicyError)
def draw_machine(policy: Fsm, graphs: Sequence[Graph], path: str | os.PathLike[str]) -> None:
    """Draw a state machine as observed on mini-batches: states, the type run in each, and transition counts.

    A .png file shows the most visited states, a .dot file all of them.

    Args:
        policy: the policy; each of its directions gets a drawing, but its rivals are not drawn.
        graphs: mini-batches from `Batched.merged`, or your own graphs from `to_graph`.
        path: the file to write, .dot for Graphviz or .png, which needs the extra `plot`.

    Raises:
        PolicyError: the path has another ending, the file cannot be written, or a package is missing.

    >>> import tempfile
    >>> from autobatch.graph.sketch import to_graph
    >>> from autobatch.policies import Dag, learn
    >>> graph = to_graph(Dag.from_edges([0, 0, 1, 2, 1], [(0, 2), (1, 3), (3, 4)]), ["read", "add", "scale"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     draw_machine(learn([graph], seed=0), [graph], f"{folder}/machine.dot")
    ...     Path(f"{folder}/machine.dot").read_text().splitlines()[0]
    'digraph policy {'
    """
    path = Path(path)
    walks = {way: policy.follow(way, map(policy.to_known, graphs)) for way in policy.ways}
    try:
        if path.suffix == ".dot":
            path.write_text("\n".join(to_dot(walks)) + "\n", encoding="utf-8")
        elif path.suffix == ".png":
            _plot(policy, walks, path)
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


def _plot(policy: Fsm, walks: dict[Way, Walk], path: Path) -> None:
    """Draw each direction as in notebooks, one below the other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from autobatch.display.html import FONT

    pictures = {way: walk.picture(policy.types.names, policy.machine.encoding) for way, walk in walks.items()}
    widths, heights = zip(*(picture.size for picture in pictures.values()), strict=True)
    width, height = max(widths), sum(heights) + TITLE * len(pictures)
    figure, top = Figure(figsize=(width / PER_INCH, height / PER_INCH), dpi=PER_INCH), height
    FigureCanvasAgg(figure)
    for way, picture in pictures.items():
        wide, high = picture.size
        share = walks[way].share(picture) or f"{len(picture.states)} states"
        figure.text(10 / width, (top - TITLE + 6) / height, f"{way}: {share}", fontsize=FONT, fontweight="bold")
        top -= TITLE + high
        picture.plot(figure.add_axes((0, top / height, wide / width, high / height)))
    figure.savefig(str(path), dpi=SHARPNESS * PER_INCH)
