"""Test data sets of graphs: what PyTorch Geometric reads, and malformed folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.readers import read_tu
from helpers.data.files import write_tu
from helpers.runs.ways import each

FILES = {
    "A": "1, 2\r\n2, 1\n\n4,5\n", "graph_indicator": "1\n1\n3\n3\n3\n", "graph_labels": "-1\n0\n1\n",
    "node_labels": "0\n3\n1\n1, 2\n0\n", "node_attributes": "0.5, 1\n1,2\n1,2\n-1e3,0\n0,0\n",
    "edge_attributes": "0.5\n1.5\n-2\n", "graph_attributes": "1.5\n2.5\n-3\n",
}  # fmt: skip


def write(folder: Path, **changed: str) -> Path:
    for part, text in {**FILES, **changed}.items():
        (folder / f"X_{part}.txt").write_text(text, newline="")
    return folder


def test_graphs_are_read_as_drawn_and_as_by_pytorch_geometric(tmp_path: Path) -> None:
    drawn = write_tu(tmp_path / "MADE", np.random.default_rng(0), 20)
    assert read_tu(tmp_path / "MADE") == drawn
    io = pytest.importorskip("torch_geometric.io", reason="needs the extra interop")
    data, slices, _ = io.read_tu_data(str(tmp_path / "MADE"), "MADE")
    for n, graph in enumerate(drawn):
        edges = data.edge_index[:, slices["edge_index"][n] : slices["edge_index"][n + 1]]
        edges = edges - slices["x"][n] if int(edges.min()) else edges
        assert sorted(graph["edges"]) == sorted(edges.t().tolist())
        assert graph["x"] == data.x[slices["x"][n] : slices["x"][n + 1]].argmax(1).tolist()
        assert graph["label"] == int(data.y[n])


def test_all_files_are_read(tmp_path: Path) -> None:
    assert read_tu(write(tmp_path)) == [
        {"edges": [[0, 1], [1, 0]], "x": [0, 3], "attributes": [[0.5, 1.0], [1.0, 2.0]], "edge_attributes": [0.5, 1.5],
         "label": -1, "target": 1.5},
        {"edges": [], "x": [], "attributes": [], "edge_attributes": [], "label": 0, "target": 2.5},
        {"edges": [[1, 2]], "x": [1, [1, 2], 0], "attributes": [[1.0, 2.0], [-1000.0, 0.0], [0.0, 0.0]],
         "edge_attributes": [-2.0], "label": 1, "target": -3.0},
    ]  # fmt: skip


@each(
    "part, text, told",
    [
        ("A", "1, 2\n2, 3\n1, 2\n", "line 2, column 1: expected two of the 5 nodes, in the same graph"),
        ("A", "1, 6\n2, 1\n4, 5\n", "line 1, column 1: expected two of the 5 nodes"),
        ("A", "1\n", "line 1, column 1: expected 2 numbers from 1 on"),
        ("A", "1, x\n", "line 1, column 4: expected an int, found 'x'"),
        ("A", "1,\n", "line 1, column 3: expected an int, found the end of the line"),
        ("A", "1 2\n", "line 1, column 3: expected a comma, or the end of the line"),
        ("A", "1, 2\n", "X_edge_attributes.txt: the file must have a line for each of 1 edges, got 3"),
        ("graph_indicator", "1\n0\n", "line 2, column 1: expected 1 number from 1 on, found '0'"),
        ("graph_indicator", "1\n4\n", "line 2, column 1: expected a graph number from 1 to 3, found '4'"),
        ("graph_indicator", "1\n999999999\n", "line 2, column 1: expected a graph number from 1 to 3"),
        ("graph_attributes", "1\n", "must have a line for each of 3 graphs, got 1"),
        ("node_attributes", "nan\n", "line 1, column 1: expected a finite number, found 'nan'"),
        ("node_labels", "1.5\n", "line 1, column 1: expected an int, found '1.5'"),
    ],
)
def test_malformed_files_are_named_with_their_place(tmp_path: Path, part: str, text: str, told: str) -> None:
    with pytest.raises(DataError, match=told):
        read_tu(write(tmp_path, **{part: text}))


def test_folders_hold_one_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must hold one file \*_A.txt, got none"):
        read_tu(tmp_path)
    (tmp_path / "Y_A.txt").write_text("1, 1\n")
    with pytest.raises(DataError, match=r"Y_graph_indicator\.txt: no such file"):
        read_tu(tmp_path)
    (tmp_path / "Y_A.txt").write_text("")
    (tmp_path / "Y_graph_indicator.txt").write_text("")
    with pytest.raises(DataError, match="the file holds none"):
        read_tu(tmp_path)
    (tmp_path / "Y_A.txt").write_text("1, 1\n")
    (tmp_path / "Y_graph_indicator.txt").write_text("999999999\n")
    with pytest.raises(DataError, match="from 1 to 1"):
        read_tu(tmp_path)
    with pytest.raises(DataError, match=r"got X_A\.txt, Y_A\.txt"):
        read_tu(write(tmp_path))
