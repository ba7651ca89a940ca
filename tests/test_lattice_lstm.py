"""The Lattice-LSTM: batched against eager, against its PyTorch twin, its batches, and learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models.data.dag import draw_dags, draw_lattices
from autobatch.models.data.dataset import Dataset, load_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.lattice_lstm import SPEC, LatticeLSTM, count_correct
from twins.lattice_lstm import LatticeLSTMTwin

LATTICES = Path(__file__).parents[2] / "shared" / "data" / "lattice"
POLICIES = ("unbatched", "depth", "agenda")
SEEDS = range(3)
TO_EAGER = 1e-10
TO_TWIN = 1e-9


def draw_data(seed: int, path: Path, n_lattices: int = 12) -> Dataset:
    """Draw lattices of both kinds, and one without a position to tag; load them from a file."""
    rng = np.random.default_rng(seed)
    half = n_lattices // 2
    drawn = [Lattice(["0"], [[]]), *draw_lattices(half - 1, rng), *draw_dags(n_lattices - half, rng, max_nodes=10)]
    tags = {tag: str(number) for number, tag in enumerate("0123456BMES")}
    words = {word: str(number) for number, word in enumerate(sorted({w for x in drawn for a in x.arcs for _, w in a}))}
    file = path / "lattices.txt"
    numbered = [
        Lattice([tags[t] for t in x.tags], [[(start, words[w]) for start, w in arcs] for arcs in x.arcs]) for x in drawn
    ]
    file.write_text("\n\n".join([str(len(drawn)), *map(str, numbered)]) + "\n")
    return load_lattices(str(file), rng)


def draw_workload(seed: int, path: Path, n_lattices: int = 12, dim: int = 6) -> tuple[Any, list[Lattice[int]]]:
    """Draw a model in float64, and lattices of different sizes."""
    data = draw_data(seed, path, n_lattices)
    return SPEC.build(data, dim, np.random.default_rng(seed)).astype("float64"), data.items


def relative(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest expected number."""
    expected = np.asarray(expected)
    return float(np.max(np.abs(np.asarray(found) - expected)) / np.max(np.abs(expected)))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_batched_losses_are_the_eager_ones(policy: str, seed: int, tmp_path: Path) -> None:
    model, lattices = draw_workload(seed, tmp_path)
    loss = ab.batched(model.loss, policy=policy)
    expected = [float(model.loss(lattice)) for lattice in lattices]
    assert expected[0] == 0.0
    assert relative(loss(lattices), expected) < TO_EAGER
    assert relative(loss(loss.record_all(lattices)), expected) < TO_EAGER


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_losses_and_gradients_are_the_twins(policy: str, seed: int, tmp_path: Path) -> None:
    model, lattices = draw_workload(seed, tmp_path)
    twin = LatticeLSTMTwin.with_state(model.state_dict())
    twin_losses = torch.stack([twin.loss(lattice) for lattice in lattices])
    twin_losses.mean().backward()  # type: ignore[no-untyped-call]

    loss = ab.batched(model.loss, policy=policy)
    value, grads = loss.value_and_grad(lattices)
    assert relative(loss(lattices), twin_losses.detach()) < TO_TWIN
    assert relative(value, twin_losses.detach().mean()) < TO_TWIN
    expected = {name: parameter.grad for name, parameter in twin.named_parameters()}
    assert grads.keys() == expected.keys()
    for name, gradient in expected.items():
        assert relative(grads[name], gradient) < TO_TWIN, name


@pytest.mark.parametrize("policy", POLICIES)
def test_scores_are_the_twins(policy: str, tmp_path: Path) -> None:
    model, lattices = draw_workload(0, tmp_path)
    twin = LatticeLSTMTwin.with_state(model.state_dict())
    found = ab.batched(model.scores, policy=policy)(lattices)
    assert len(found[0]) == 0
    for scores, lattice in zip(found[1:], lattices[1:], strict=True):
        assert relative(scores, twin.scores(lattice).detach()) < TO_TWIN


def test_a_position_with_one_arc_is_no_sum() -> None:
    """Four positions, one of them with two arcs: 0 → 1 → 2 → 3 and 0 → 2."""
    model = LatticeLSTM(n_characters=4, n_words=4, n_tags=3, dim=3, rng=np.random.default_rng(0))
    lattice = Lattice([0, 1, 2, 1], [[], [(0, 1)], [(1, 2), (0, 3)], [(2, 3)]])
    loss = ab.batched(model.loss)
    loss([lattice])
    assert loss.last is not None
    graph = loss.last.graph
    names = [graph.types.names[kind] for kind in graph.type_id]
    counted = {name: names.count(name) for name in names}
    assert counted == {
        "parameter#1": 1, "parameter#2": 1, "read_character": 3, "read_word": 1, "sum_n#1": 1, "tag_loss": 3,
        "sum_n#2": 1,
    }  # fmt: skip


@pytest.mark.skipif(not LATTICES.exists(), reason="../shared/data/lattice is not there")
@pytest.mark.parametrize(("policy", "batches"), [("depth", 613), ("agenda", 443)])
def test_batches_of_real_lattices_are_as_counted_elsewhere(policy: str, batches: int) -> None:
    """That count has no nodes for the first state, whose two parameters, h and c, are a batch each."""
    data = load_lattices(str(LATTICES), np.random.default_rng(0))
    model = SPEC.build(data, 2, np.random.default_rng(0))
    assert isinstance(model, LatticeLSTM)
    loss = ab.batched(model.loss, policy=policy)
    loss(data.train[:32])
    assert loss.last is not None
    assert (loss.last.batches, loss.last.lower_bound) == (batches + 2, 209 + 2)


def test_counting_right_tags() -> None:
    sure = np.eye(4)
    lattices = [Lattice([1, 2, 3], [[], [(0, 1)], [(1, 1)]]), Lattice([1], [[]]), Lattice([1, 0], [[], [(0, 1)]])]
    outputs = [[sure[2], sure[1]], [], [sure[0]]]
    assert count_correct(outputs, lattices, {}) == {"tag_accuracy": (1, 3)}
    assert SPEC.predict is not None
    names = {"tags": Vocabulary(["a", "b", "c"])}
    assert SPEC.predict(outputs, lattices, names) == [{"tags": ["b", "a"]}, {"tags": []}, {"tags": ["<unknown>"]}]


def test_a_few_steps_lower_the_loss(tmp_path: Path) -> None:
    model, lattices = draw_workload(1, tmp_path, n_lattices=32, dim=16)
    loss = ab.batched(model.loss)
    optimizer = ab.optim.Adam(model, lr=3e-2)
    graphs = loss.record_all(lattices)
    before = loss(graphs).mean()
    for _ in range(30):
        _, grads = loss.value_and_grad(graphs)
        optimizer.step(grads)
    assert loss(graphs).mean() < 0.5 * before
