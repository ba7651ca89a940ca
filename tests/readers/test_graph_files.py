"""Test PENMAN and SMILES against the libraries that parse them, and malformed files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.readers import read_penman, read_smiles
from helpers.data.files import write_penman, write_smiles
from helpers.runs.ways import each

AMR = '(w / want-01 :polarity - :ARG0 (b / boy) :ARG1 (g / go-02 :ARG0 b :time-of (n / now :quant 3)) :name "Kim Lee")'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to write."""
    return tmp_path / "file"


class TestPenman:
    """Graphs in PENMAN notation."""

    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        self.penman: Any = pytest.importorskip("penman", reason="needs the extra readers")

    def test_a_graph(self, path: Path) -> None:
        path.write_text(f"\ufeff# ::id 1\n\n{AMR}\n\n(x / y)\n", "utf-8")
        first, second = read_penman(path)
        assert first == {
            "concept": ["want-01", "boy", "go-02", "now", "-", "3", "Kim Lee"],
            "edges": [[1, 0], [2, 0], [1, 2], [2, 3], [4, 0], [5, 3], [6, 0]],
            "relation": [":ARG0", ":ARG1", ":ARG0", ":time", ":polarity", ":quant", ":name"],
        }
        assert second == {"concept": ["y"], "edges": [], "relation": []}

    def test_roles_of_amr_that_look_inverted(self, path: Path) -> None:
        path.write_text("(r / ring :consist-of (g / gold) :ARG1-of (l / lose-02))")
        (read,) = read_penman(path)
        assert (read["edges"], read["relation"]) == ([[1, 0], [0, 2]], [":consist-of", ":ARG1"])

    def test_triples_are_those_of_penman(self, path: Path) -> None:
        write_penman(path, np.random.default_rng(0), 30)
        graphs = list(self.penman.iterdecode(path.read_text()))
        assert len(graphs) == 30
        for read, graph in zip(read_penman(path), graphs, strict=True):
            concepts = {source: target for source, _, target in graph.instances()}
            triples = [
                (concepts[source], role, concepts.get(target, target.strip('"')))
                for source, role, target in graph.triples
                if role != ":instance"
            ]
            found = [
                (read["concept"][parent], role, read["concept"][child])
                for (child, parent), role in zip(read["edges"], read["relation"], strict=True)
            ]
            assert sorted(found) == sorted(triples)
            assert read["concept"][0] == concepts[graph.top]

    @each(
        "text, told",
        [
            (f"{AMR}\n(w / want-01\n", "line 2"),
            (f"{AMR}\n(w / \n:ARG0 ))\n", "line 3: variable 'w' must have a concept"),
            (f"{AMR}\n(w / want-01\n:ARG0 )\n", "line 3: role ':ARG0' of 'w' must have a target"),
            (
                f"{AMR}\n(w / want-01 :ARG0 (b / boy)\n:ARG1 (b / girl))\n",
                "the graph ending at .*, line 3: variable 'b' must be defined",
            ),
            ("(w / want-01 :ARG0 (w / boy))\n", "line 1: variable 'w' must be defined once"),
            ("(w / want-01 :ARG1-of b)\n", "line 1: role ':ARG1-of' from 'w' to 'b' must be inverted once"),
            ("(w / want-01 :ARG0-of-of (b / boy))\n", "line 1: role ':ARG0-of' from 'b' to 'w' must be inverted once"),
            (f"{AMR}\n(w / want-01\n:ARG0 b c)\n", "line 3, column 9"),
            (f"{AMR}\n) (x / y)\n", r"line 2: expected '\(' to open a graph after a whole one"),
            (f"{AMR} {AMR[:-1]}", "line 1"),
            (f"{AMR} text", "line 1: expected"),
            ("# only a comment\n", "line 1"),
            ("", "the file holds none"),
            ("\n\n", "the file holds none"),
            ("(a / b :ARG0 " * 5000, "nested less deeply|line 1"),
        ],
    )
    def test_malformed_graphs_are_named_with_their_place(
        self, path: Path, text: str, told: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path.write_text(text)
        with pytest.raises(DataError, match=told) as error:
            read_penman(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        assert caplog.messages == []


class TestSmiles:
    """Molecules."""

    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        self.chemistry: Any = pytest.importorskip("rdkit.Chem", reason="needs the extra readers")

    def test_molecules(self, path: Path) -> None:
        path.write_bytes("\ufeffC(=O)N -1.5\r\n\r\n[H]O,2\r\n c1ccccc1".encode())
        amide, water, benzene = read_smiles(path)
        assert amide == {
            "x": [6, 8, 7], "edges": [[0, 1], [0, 2], [1, 0], [2, 0]], "bond": ["DOUBLE", "SINGLE"] * 2, "target": -1.5,
        }  # fmt: skip
        assert water == {"x": [8], "edges": [], "bond": [], "target": 2.0}
        assert benzene["bond"] == ["AROMATIC"] * 12
        assert "target" not in benzene

    def test_graphs_are_those_of_rdkit(self, path: Path) -> None:
        write_smiles(path, np.random.default_rng(0), 40)
        lines = [line.split() for line in path.read_text().splitlines()]
        for read, (smiles, target) in zip(read_smiles(path), lines, strict=True):
            molecule = self.chemistry.MolFromSmiles(smiles)
            matrix = np.zeros((len(read["x"]),) * 2, int)
            matrix[tuple(np.array(read["edges"], int).reshape(-1, 2).T)] = 1
            assert (matrix == self.chemistry.GetAdjacencyMatrix(molecule)).all()
            assert read["x"] == [atom.GetAtomicNum() for atom in molecule.GetAtoms()]
            assert read["target"] == float(target)

    @each(
        "text, told",
        [
            ("CCO\n C(\n", "line 2, column 2: expected SMILES"),
            ("CO(C)C\n", r"line 1, column 1: expected a valid molecule \(.*valence.*\), found 'CO'"),
            ("c1cccc1\n", "line 1, column 1: expected a valid molecule"),
            ("CCO ethanol\n", "line 1, column 5: expected a finite number, or the end of the line, found 'ethanol'"),
            ("CCO nan\n", "line 1, column 5"),
            (", 3\n", "line 1, column 1: expected SMILES"),
            ("\n", "the file holds none"),
        ],
    )
    def test_malformed_molecules_are_named_with_their_place(
        self, path: Path, text: str, told: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        path.write_text(text)
        with pytest.raises(DataError, match=told) as error:
            read_smiles(path)
        assert str(path) in str(error.value)
        assert capfd.readouterr().err == ""

    def test_blanks_take_linear_time(self, path: Path) -> None:
        path.write_text(f"C 1{' ' * 100_000}2\n")
        start = time.perf_counter()
        with pytest.raises(DataError, match="line 1, column 3: expected a finite number"):
            read_smiles(path)
        assert time.perf_counter() - start < 5  # a quadratic time is half a minute


def test_without_a_library_an_error_names_the_extra(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("CCO\n")
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(DataError, match=r"reading SMILES needs the package rdkit; run pip install '.*\[readers\]'"):
        read_smiles(path)
