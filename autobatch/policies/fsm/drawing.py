"""Draw a state machine: its states, the type run in each, and the transitions between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autobatch.display.html import FONT
from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.machine import Fsm, Way
from autobatch.policies.fsm.walk import Walk
from autobatch.release import pip_install

PER_INCH = 72  # pixels, so that a font size in points is also one in pixels
SHARPNESS = 2  # pixels of the file per pixel of the drawing
TITLE = 24  # height of a title, in pixels


def draw_machine(policy: Fsm, graphs: Sequence[Graph], path: Path) -> None:
    """Draw a machine as observed on mini-batches: states, the type run in each, and transition counts.

    A .png file shows the most visited states, a .dot file all of them.

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
