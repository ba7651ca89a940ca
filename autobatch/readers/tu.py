"""Read data sets of graphs in the format of TU Dortmund, such as MUTAG: a folder of text files.

In the files NAME_*.txt, a line is an edge, a graph or a node, numbered from 1 over all graphs:

    NAME_A.txt                  two nodes per line: an edge from the first to the second
    NAME_graph_indicator.txt    the graph of each node
    NAME_graph_labels.txt, NAME_graph_attributes.txt, NAME_node_labels.txt, NAME_node_attributes.txt,
    NAME_edge_labels.txt, NAME_edge_attributes.txt      optional: ints, or floats, separated by commas

Source: Morris et al. 2020, TUDataset: a collection of benchmark datasets for learning with graphs (arXiv:2007.08663).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autobatch.errors import DataError
from autobatch.keywords import checked
from autobatch.readers.lines import Line, check_found, read_lines, to_number

FIELDS = {  # optional files, and the fields of an instance with their values
    "graph_labels": "label", "graph_attributes": "target", "node_labels": "x", "node_attributes": "attributes",
    "edge_labels": "edge_label", "edge_attributes": "edge_attributes",
}  # fmt: skip
_VALUE = re.compile(r"[^, \t]+")
_INT = re.compile("-?[0-9]{1,9}")
_COMMA = re.compile("[ \t]*,[ \t]*")


@checked()
def read_tu(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the graphs of a folder in the format of TU Dortmund, such as MUTAG.

    Args:
        folder: holds NAME_A.txt, NAME_graph_indicator.txt, and optionally files of labels and attributes.

    Returns:
        A dict per graph. `edges` lists pairs (from, to) of its nodes, counted from 0; with NAME_graph_labels.txt,
        `label` is an int, with NAME_graph_attributes.txt, `target` a float. For each node, in order, `x` lists labels
        and `attributes` floats; for each edge, `edge_label` and `edge_attributes`. An item is a list if its line holds
        several numbers. Fields without a file are missing.

    Raises:
        DataError: a file is missing or malformed, files differ in length, or an edge joins two graphs.
    """
    place = Path(folder)
    names = sorted(path.name.removesuffix("_A.txt") for path in place.glob("*_A.txt"))
    if len(names) != 1:
        found = ", ".join(f"{name}_A.txt" for name in names) or "none"
        raise DataError(f"cannot read graphs from {place}: the folder must hold one file *_A.txt, got {found}.")

    def file(part: str) -> Path:
        return place / f"{names[0]}_{part}.txt"

    given = {part: _read(file(part), part, _parser(part)) for part in FIELDS if file(part).exists()}
    indicator = _read(file("graph_indicator"), "graphs", lambda line: (line, *_ints(line, 1)))
    known = [len(values) for part, values in given.items() if part.startswith("graph")]
    # Without a file of graphs, the greatest number in the indicator is their number, but at most that of nodes: a
    # greater one is an error below, found before lists are made for so many graphs.
    n_graphs = known[0] if known else min(max((graph for _, graph in indicator), default=0), len(indicator))
    for line, graph in indicator:
        if graph > n_graphs:
            raise line.fault("graphs", 0, f"a graph number from 1 to {n_graphs}")
    graphs = [graph for _, graph in indicator]
    edges = _read(file("A"), "edges", lambda line: (line, *_ints(line, 2)))
    for part, values in given.items():
        expected = {"graph": n_graphs, "node": len(graphs), "edge": len(edges)}[part.partition("_")[0]]
        if len(values) != expected:
            raise DataError(
                f"cannot read graphs from {file(part)}: the file must have a line for each of {expected} "
                f"{part.partition('_')[0]}s, got {len(values)}."
            )
    read: list[dict[str, Any]] = [
        {"edges": []} | {FIELDS[part]: [] for part in given if not part.startswith("graph")} for _ in range(n_graphs)
    ]
    # The number of each node within its graph, from 0.
    numbers, sizes = list[int](), [0] * n_graphs
    for graph in graphs:
        numbers.append(sizes[graph - 1])
        sizes[graph - 1] += 1
    ends = [_check_edge(line, one, other, graphs) for line, one, other in edges]
    for (one, other), graph in ends:
        read[graph - 1]["edges"].append([numbers[one - 1], numbers[other - 1]])
    for part, values in given.items():
        kind, field = part.partition("_")[0], FIELDS[part]
        if kind == "graph":
            for instance, value in zip(read, values, strict=True):
                instance[field] = value
            continue
        for value, graph in zip(values, graphs if kind == "node" else [graph for _, graph in ends], strict=True):
            read[graph - 1][field].append(value)
    return check_found(place, "graphs", read, "a line for each node in *_graph_indicator.txt")


def _check_edge(line: Line, one: int, other: int, graphs: list[int]) -> tuple[tuple[int, int], int]:
    """Return the two nodes of an edge, and their graph."""
    if max(one, other) > len(graphs) or graphs[one - 1] != graphs[other - 1]:
        raise line.fault("an edge", 0, f"two of the {len(graphs)} nodes, in the same graph")
    return (one, other), graphs[one - 1]


def _read(path: Path, what: str, parse: Callable[[Line], Any]) -> list[Any]:
    return [parse(line) for line in read_lines(path, what) if line.text.strip(" \t")]


def _ints(line: Line, count: int) -> list[int]:
    """Return numbers of nodes or graphs, from 1."""
    found = _numbers(line, _INT.fullmatch, int)
    if len(found) != count or min(found) < 1:
        raise line.fault("graphs", 0, f"{count} number{'s' * (count > 1)} from 1 on")
    return found


def _parser(part: str) -> Callable[[Line], Any]:
    def parse(line: Line) -> Any:
        if part.endswith("labels"):
            found: list[Any] = _numbers(line, _INT.fullmatch, int)
        else:
            found = _numbers(line, lambda text: not math.isnan(to_number(text)), float)
        return found[0] if len(found) == 1 else found

    return parse


def _numbers(line: Line, is_number: Callable[[str], Any], convert: Callable[[str], Any]) -> list[Any]:
    """Parse numbers separated by commas."""
    found, position = [], len(line.text) - len(line.text.lstrip(" \t"))
    while True:
        value = _VALUE.match(line.text, position)
        if not value or not is_number(value[0]):
            raise line.fault("graphs", position, "an int" if convert is int else "a finite number")
        found.append(convert(value[0]))
        comma = _COMMA.match(line.text, value.end())
        if not comma:
            rest = line.text[value.end() :].strip(" \t")
            if rest:
                raise line.fault("graphs", line.text.index(rest, value.end()), "a comma, or the end of the line")
            return found
        position = comma.end()
