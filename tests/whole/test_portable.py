"""Recorded graphs are pickled to other processes and run there, whatever either side has recorded before."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from helpers.models.every_model import MODELS
from helpers.twins.cases import draw_trees_case

QUICK = ("tree-lstm", "lattice-lstm", "child-sum tree-lstm", "seq2seq with additive attention")


def pickled(graphs: Any) -> Any:
    return pickle.loads(pickle.dumps(graphs))


@pytest.mark.cases(4, 20)
@pytest.mark.parametrize("name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in MODELS])
def test_graphs_of_every_model_arrive(name: str) -> None:
    model, instances = MODELS[name]()
    here = ab.batched(model.loss, backend="reference")
    there = ab.batched(copy.deepcopy(model).loss, backend="reference")
    there(instances[::-1][:2])  # numbers types in another order
    graphs = here.record_all(instances)
    value, gradients = there.value_and_grad(pickled(graphs))
    expected, others = there.value_and_grad(instances)
    assert value == expected
    for parameter, gradient in gradients.items():
        assert np.array_equal(np.asarray(gradient), np.asarray(others[parameter])), parameter
    assert here.value_and_grad(pickled(graphs))[0] == here.value_and_grad(graphs)[0]
    mixed = [*pickled(graphs[:1]), *there.record_all(instances[1:])]
    assert there.value_and_grad(mixed)[0] == pytest.approx(value, rel=1e-6)


class Many(ab.Module):
    """Returns structures with lists; outside of cells, it uses parameters, constants and functions of ops."""

    def __init__(self) -> None:
        self.scale = ab.Parameter(np.linspace(0.5, 1.5, 3))
        self.table = ab.Parameter(np.arange(6.0).reshape(2, 3))
        self.training = False

    @ab.cell
    def double(self, x: Any) -> Any:
        return 2.0 * x * self.scale

    def run(self, rows: list[float]) -> Any:
        first = self.double(np.array(rows[:3]))
        if len(rows) > 3:
            first = first + self.table[1] * self.scale
        values = [ab.relu(self.double(first * row)) for row in rows]
        return {"first": ab.softmax(first), "values": values, "n": len(rows), "best": ab.argmax(first)}


ROWS = [[1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 1.5], [3.0, 1.0, 2.0, 5.0, 6.0]]


class Fixed(ab.Module):
    """Has a type for each number."""

    def __init__(self) -> None:
        self.scale = ab.Parameter(np.ones(2))

    @ab.cell(static=("n",))
    def times(self, n: int) -> Any:
        return n * self.scale

    def run(self, n: int) -> Any:
        return self.times(n)


def test_more_tables_than_are_kept_arrive_in_one_call() -> None:
    model = Fixed()
    here, there = (ab.batched(one.run, backend="reference") for one in (model, copy.deepcopy(model)))
    graphs = [pickled(here.record_all([n]))[0] for n in range(20)]  # each with one type more
    for order in (range(20), range(19, -1, -1)):
        assert np.array_equal(np.asarray(there([graphs[n] for n in order]))[:, 0], order)


def test_structures_constants_and_ops_outside_of_cells_arrive() -> None:
    model = Many()
    here, there = (ab.batched(one.run, backend="reference") for one in (model, copy.deepcopy(model)))
    there(ROWS[1:2])
    graphs = here.record_all(ROWS)
    found, expected = there(pickled(graphs)), here(graphs)
    assert found.keys() == expected.keys()
    for key in ("first", "n", "best"):
        assert np.array_equal(found[key], expected[key])
    for ours, theirs in zip(found["values"], expected["values"], strict=True):
        assert np.array_equal(np.array(ours), np.array(theirs))
    assert found["best"].dtype == np.int64


def test_a_pickle_is_small_and_names_no_parameter_values() -> None:
    model, trees = draw_trees_case(seed=0, n_instances=5, dim=256)
    graphs = ab.batched(model.loss, backend="reference").record_all(trees)
    content = pickle.dumps(graphs)
    n_words = sum(graph.words.nbytes + graph.floats.nbytes for graph in graphs)
    assert len(content) < n_words + 600 * len(graphs) + 8000 < sum(p.data.nbytes for p in model.parameters().values())


SCRIPT = """
import pickle
import autobatch as ab
model, trees = pickle.load(open("drawn", "rb"))
loss = ab.batched(model.loss, backend="reference")
loss(trees[1:2])
pickle.dump((loss.record_all(trees), loss(trees)), open("graphs", "wb"))
"""


@pytest.mark.cases(1, 8)
def test_graphs_arrive_from_another_process(tmp_path: Path) -> None:
    model, trees = draw_trees_case(seed=0, n_instances=5, dim=4)
    (tmp_path / "drawn").write_bytes(pickle.dumps((model, trees)))
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, check=True)
    graphs, expected = pickle.loads((tmp_path / "graphs").read_bytes())
    loss = ab.batched(model.loss, backend="reference")
    assert np.array_equal(loss(graphs), expected)
    assert loss.explain(graphs).batches == loss.explain(trees).batches
    again = pickle.loads(pickle.dumps(graphs))  # pickled again, before a function has run them
    assert np.array_equal(loss(again), expected)


def test_graphs_of_another_model_are_refused() -> None:
    (model, trees), (wider, _) = (draw_trees_case(seed=0, n_instances=5, dim=dim) for dim in (4, 5))
    graphs = pickled(ab.batched(model.loss, backend="reference").record_all(trees))
    with pytest.raises(GraphError, match=r"cell '\w+' must have the signature .* record it with the same model"):
        ab.batched(wider.loss, backend="reference")(graphs)
    with pytest.raises(GraphError, match="Many has a cell 'leaf', which is missing here"):
        ab.batched(Many().run, backend="reference")(graphs)
    with pytest.raises(GraphError, match="must be given to the batched function that recorded it"):
        graphs[0].types.arrays()

    @ab.cell
    def local(x: Any) -> Any:
        return 2.0 * x

    with pytest.raises(GraphError, match="cell 'local' must not depend on objects that another process cannot find"):
        pickle.dumps(ab.batched(lambda x: local(x), backend="reference").record_all([np.ones(2)]))
