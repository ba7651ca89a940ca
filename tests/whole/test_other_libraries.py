"""The functions of `docs/howto/data.md`, which convert data of other libraries, tested with these if installed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from checkout import ROOT

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "howto" / "data.md"
IDS = {"she": 1, "reads": 2, "books": 3, "S": 4, "NP": 5, "VP": 6, "V": 7}


def function(name: str) -> Any:
    """Return a function that the page defines."""
    (code,) = (found for found in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
               if found.startswith(f"def {name}("))  # fmt: skip
    space: dict[str, Any] = {}
    exec(code, space)
    return space[name]


class Net(ab.Module):
    """Sums over trees and graphs, which reveal how nodes are joined."""

    up = ab.fold(parents="parent", node="node", each=lambda state: state)
    nested = ab.fold("children", "node")
    states = ab.fold_edges("edges", "update", "embed", rounds=2)

    def __init__(self) -> None:
        self.scale = ab.Parameter(np.float32(1.0))

    @ab.cell
    def node(self, children: list[Any], word: int = 0) -> Any:
        return self.scale * word + 10.0 * ab.sum_n(children, shape=())

    @ab.cell
    def embed(self, x: int) -> Any:
        return self.scale * x

    @ab.cell
    def update(self, state: Any, messages: list[Any]) -> Any:
        return state + ab.sum_n(messages, shape=())


def run(way: str, instance: Any) -> Any:
    """Return the batched result of a program on one instance."""
    model = Net()
    (found,) = ab.batched(getattr(model, way), backend="reference")([instance])
    return np.array(found).tolist()


def test_spacy() -> None:
    spacy = pytest.importorskip("spacy", reason="needs the extra interop")
    words = ["Oh", ".", "She", "reads", "books"]
    doc = spacy.tokens.Doc(spacy.blank("en").vocab, words, heads=[0, 0, 3, 3, 3], deps=["ROOT", "p", "s", "ROOT", "o"])
    found = [function("from_spacy")(sentence, IDS) for sentence in doc.sents]
    assert found == [{"parent": [-1, 0], "word": [0, 0]}, {"parent": [1, -1, 1], "word": [1, 2, 3]}]
    assert run("up", found[1]) == [1.0, 42.0, 3.0]


def test_stanza() -> None:
    data = pytest.importorskip("stanza.models.common.doc", reason="needs the extra interop")
    words = [("She", 2), ("reads", 0), ("books", 2)]
    listed = [[{"id": n, "text": text, "head": head, "deprel": "x"} for n, (text, head) in enumerate(words, 1)]]
    (sentence,) = data.Document(listed).sentences
    assert function("from_stanza")(sentence, IDS) == {"parent": [1, -1, 1], "word": [1, 2, 3]}


def test_nltk() -> None:
    nltk = pytest.importorskip("nltk", reason="needs the extra interop")
    tree = nltk.Tree.fromstring("(S (NP she) (VP (V reads) (NP books)))")
    found = function("from_nltk")(tree, IDS)
    assert found["label"] == 4
    assert found["children"][0] == {"label": 5, "children": [{"word": 1}]}
    assert run("nested", found) == 10 * (10 * 1 + 10 * (10 * 2 + 10 * 3))


def test_networkx() -> None:
    networkx = pytest.importorskip("networkx", reason="needs the extra interop")
    graph = networkx.DiGraph([("a", "b"), ("b", "c")])
    networkx.set_node_attributes(graph, {"a": 1, "b": 2, "c": 4}, "x")
    found = function("from_networkx")(graph)
    assert found == {"edges": [(0, 1), (1, 2)], "x": [1, 2, 4]}
    assert run("states", found) == [1.0, 4.0, 9.0]


def test_pytorch_geometric() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra interop")
    data = pytest.importorskip("torch_geometric.data", reason="needs the extra interop")
    graph = data.Data(
        x=torch.tensor([[1], [2], [4]]), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.tensor([1])
    )  # fmt: skip
    assert function("from_pyg")(graph) == {"edges": [[0, 1], [1, 2]], "x": [1, 2, 4], "label": 1}


def test_rdkit() -> None:
    chem = pytest.importorskip("rdkit.Chem", reason="needs the extra interop")
    found = function("from_rdkit")(chem.MolFromSmiles("CCO"))
    assert found == {"edges": [(0, 1), (1, 2), (1, 0), (2, 1)], "x": [6, 6, 8]}
    assert chem.MolFromSmiles("C(") is None
    step = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    assert run("states", found) == (step @ step @ [6, 6, 8]).tolist()


def test_datasets() -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra interop")
    rows = [{"parent": [-1, 0], "word": [1, 2]}, {"parent": [-1], "word": [3]}]
    found = function("from_dataset")(datasets.Dataset.from_list(rows))
    assert found == rows
    assert run("up", found[0]) == [21.0, 2.0]
