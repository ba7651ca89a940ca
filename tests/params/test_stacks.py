"""Test stacks: parameters are adjacent, and everything that knows them by name works as before."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from autobatch.memplan.planner import MemoryPlanner
from autobatch.params import stacks
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint
from autobatch.params.parameter import Parameter
from autobatch.params.stacks import SharedBuffer, Stack, Targets, make_gradients, make_row, make_stack, settle
from helpers.runs.recorded import planned_types

WIDTH = 3
N_WORDS = 5
OPTIMIZERS: dict[str, Callable[[ab.Module], ab.optim.Optimizer]] = {
    "sgd": lambda model: ab.optim.SGD(model, lr=0.1, momentum=0.9),
    "adam": lambda model: ab.optim.Adam(model, lr=0.01),
    "adamw, lazy": lambda model: ab.optim.AdamW(model, lr=0.01, lazy=True),
}


class Gates(ab.Module):
    """A recurrent cell with a parameter per gate, a table that is read in two ways, and a head of two parameters."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.table = Parameter(rng.standard_normal((N_WORDS, WIDTH)))
        self.other = Parameter(rng.standard_normal((N_WORDS, WIDTH)))
        self.w = [Parameter(rng.standard_normal((WIDTH, WIDTH))) for _ in range(3)]
        self.u = [Parameter(rng.standard_normal((WIDTH, WIDTH))) for _ in range(3)]
        self.b = [Parameter(rng.standard_normal(WIDTH)) for _ in range(3)]

    @ab.cell
    def read(self, h: Any, word: int) -> Any:
        x = ab.lookup(self.table, word)
        r, z, c = (w @ x + u @ h + b for w, u, b in zip(self.w, self.u, self.b, strict=True))
        return ab.sigmoid(z) * h + ab.sigmoid(r) * ab.tanh(c)

    @ab.cell
    def compare(self, h: Any, word: int) -> Any:
        """Read the table as a matrix next to another, and two weights of `read` in reverse order."""
        scores = ab.tanh(self.table @ h) + self.other @ h
        return ab.cross_entropy(scores, word) + ab.sum(ab.tanh(self.w[1] @ h) * ab.tanh(self.w[0] @ h))

    def loss(self, words: list[int]) -> Any:
        h, losses = np.zeros(WIDTH), []
        for word in words:
            h = self.read(h, word)
            losses.append(self.compare(h, word))
        return ab.sum_n(losses)


class Joined(Gates):
    """The same network, but a separate cell reads words, so that w and u form one product of two vectors."""

    @ab.cell
    def embed(self, word: int) -> Any:
        return ab.tanh(ab.lookup(self.table, word))

    @ab.cell
    def step(self, h: Any, x: Any) -> Any:
        r, z, c = (w @ x + u @ h + b for w, u, b in zip(self.w, self.u, self.b, strict=True))
        return ab.sigmoid(z) * h + ab.sigmoid(r) * ab.tanh(c)

    def loss(self, words: list[int]) -> Any:
        h, losses = np.zeros(WIDTH), []
        for word in words:
            h = self.step(h, self.embed(word))
            losses.append(self.compare(h, word))
        return ab.sum_n(losses)


def draw_words(seed: int, n: int = 6) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(N_WORDS, size=size).tolist() for size in rng.integers(1, 5, size=n)]


def make_loss(
    seed: int = 0, stacked: bool = True, kind: type[Gates] = Gates, **options: Any
) -> tuple[Gates, ab.Batched]:
    model = kind(seed).astype("float64")
    return model, ab.batched(model.loss, planner=MemoryPlanner(stacks=stacked), **options)


def parameters(*shapes: tuple[int, ...], dtype: str = "float64") -> list[Parameter]:
    numbers = np.arange(100.0)
    made = []
    for shape in shapes:
        size = int(np.prod(shape))
        made.append(Parameter(numbers[:size].reshape(shape)).astype(dtype))
        numbers = numbers[size:]
    return made


def settled(parts: list[Parameter]) -> Stack:
    stack = make_stack(parts)
    settle([stack])
    return stack


def add_in_place(gradient: Any, part: Any) -> None:
    gradient += part


def lie_in(array: Any, whole: Any) -> bool:
    return bool(np.shares_memory(array, whole)) and array.base is not None


def test_parts_are_views_of_their_stack() -> None:
    first, second = parameters((2, 3), (1, 3))
    stack = settled([second, first])
    assert stack.shape == (3, 3)
    assert stack.data.tolist() == [[6.0, 7.0, 8.0], [0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    first.data = np.ones((2, 3))
    second.data[...] = 2
    assert stack.data[:, 0].tolist() == [2.0, 1.0, 1.0]
    stack.data = np.arange(9.0).reshape(3, 3)
    assert first.data[0].tolist() == [3.0, 4.0, 5.0]
    assert stacks.refresh([stack]) == 0


def test_a_stack_within_a_home_and_stacks_that_overlap_are_views_of_one_array() -> None:
    a, b, c, d = parameters((2,), (2,), (2,), (2,))
    two = [make_stack([a, b]), make_stack([b, c])]
    settle(two, [a, b, c, d])
    within = settled([b, c])
    assert within is two[1]
    assert two[0].data.base is two[1].data.base
    assert stacks.refresh([*two, within]) == 0
    assert (a.buffer, d.buffer) == (c.buffer, None)


def test_a_second_home_holds_copies_that_are_refreshed_and_counted() -> None:
    a, b, c = parameters((2,), (2,), (2,))
    first, second = settled([a, b]), settled([c, b])
    b.data = [8.0, 9.0]
    assert first.data.tolist() == [0.0, 1.0, 8.0, 9.0]
    assert stacks.refresh([first, second, second]) == b.data.nbytes
    assert second.data.tolist() == [4.0, 5.0, 8.0, 9.0]
    assert lie_in(c.data, second.data)
    assert not lie_in(b.data, second.data)
    assert lie_in(b.data, first.data)


def test_a_stack_packs_again_after_astype() -> None:
    a, b, c = parameters((2,), (2,), (2,))
    first, second = settled([a, b]), settled([c, b])
    for part in (a, b, c):
        part.astype("float32")
    for stack in (first, second):
        assert stack.data.dtype == stack.dtype == np.dtype(np.float32)
    assert lie_in(a.data, first.data)
    assert stacks.refresh([first, second]) == 8
    assert first.astype("float64").data.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_parts_of_two_dtypes_are_refused_and_nothing_is_moved() -> None:
    a, b = parameters((2,), (2,))
    before = a.data
    with pytest.raises(GraphError, match="dtypes differ; call astype"):
        settled([a, b.astype("float32")])
    assert (a.buffer, b.buffer) == (None, None)
    assert a.data is before


def test_copies_and_pickles_of_a_parameter_lie_by_themselves() -> None:
    a, b = parameters((2,), (2,))
    stack = settled([a, b])
    for twin in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert twin.buffer is None
        assert twin.stacks == {}
        twin.data = [7.0, 7.0]
        assert stack.data.tolist() == [0.0, 1.0, 2.0, 3.0]
    model, loss = make_loss()
    loss.value_and_grad(draw_words(0))
    twin = copy.deepcopy(model)
    before = model.state_dict()
    for parameter in twin.parameters().values():
        parameter.data = np.zeros(parameter.shape)
    for name, numbers in model.state_dict().items():
        np.testing.assert_array_equal(numbers, before[name])


def test_trainable_is_that_of_the_parts() -> None:
    a, b = parameters((2,), (2,))
    stack = make_stack([a, b])
    assert stack.trainable
    stack.trainable = False
    assert (a.trainable, b.trainable, stack.trainable) == (False, False, False)


def test_gradients_of_neighbours_are_allocated_together() -> None:
    a, b, c = parameters((2, 3), (1, 3), (4,))
    stack = settled([b, a])
    named = {"a": a, "b": b, "c": c}
    made, wholes = make_gradients(named, ())
    assert list(made) == ["a", "b", "c"]
    assert len(wholes) == 2
    targets = Targets({id(p): made[name] for name, p in named.items()}, [stack])
    add_in_place(targets.arrays[id(stack)], np.ones(stack.shape))
    assert targets.finish() == 0
    assert [np.asarray(made[name]).sum() for name in named] == [6.0, 3.0, 0.0]
    for whole in wholes:
        whole.fill(0)
    assert [np.asarray(made[name]).sum() for name in named] == [0.0, 0.0, 0.0]
    rows = make_gradients(named, {id(c)}).of
    assert isinstance(rows["c"], ab.Rows)
    for parameter in named.values():
        parameter.astype("float32")
    assert [array.dtype.name for array in make_gradients(named, ()).of.values()] == ["float32"] * 3


@pytest.mark.parametrize("order", ["apart", "exchanged", "with a gap", "of columns"])
def test_gradients_that_lie_otherwise_are_added_to_afterwards(order: str) -> None:
    a, b = parameters((2, 2), (2, 2))
    stack = settled([a, b])
    whole = np.zeros(12)
    given = {
        "apart": (np.zeros((2, 2)), np.zeros((2, 2))),
        "exchanged": (whole[4:8].reshape(2, 2), whole[:4].reshape(2, 2)),
        "with a gap": (whole[:4].reshape(2, 2), whole[5:9].reshape(2, 2)),
        "of columns": (whole[:4].reshape(2, 2).T, whole[4:8].reshape(2, 2).T),
    }[order]
    given[0][...] = 1
    targets = Targets(dict(zip((id(a), id(b)), given, strict=True)), [stack, stack])
    add_in_place(targets.arrays[id(stack)], np.arange(8.0).reshape(4, 2))
    assert targets.finish() == 64
    assert [array.tolist() for array in given] == [[[1.0, 2.0], [3.0, 4.0]], [[4.0, 5.0], [6.0, 7.0]]]


def two_by_two() -> tuple[list[Parameter], Stack]:
    """Return [[a, b], [c, d]], with 2 rows and 1 row."""
    a, b, c, d = parts = parameters((2, 3), (2, 1), (1, 3), (1, 1))
    return parts, settled([make_row([a, b]), make_row([c, d])])


def test_parts_of_rows_are_rectangles_of_their_stack() -> None:
    (a, b, c, d), stack = two_by_two()
    assert stack.data.tolist() == [[0.0, 1.0, 2.0, 6.0], [3.0, 4.0, 5.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    assert stack.parts == (a, b, c, d)
    d.data[...] = -1
    stack.data = stack.data + 1
    assert (a.data[1].tolist(), b.data[:, 0].tolist(), d.data.tolist()) == ([4.0, 5.0, 6.0], [7.0, 8.0], [[0.0]])
    assert not a.data.flags.c_contiguous
    for part in (a, b, c, d):
        part.astype("float32")
    assert stack.data.dtype == np.float32
    assert all(lie_in(part.data, stack.data) for part in (a, b, c, d))
    assert stacks.refresh([stack]) == 0


def test_a_column_and_a_row_of_a_stack_are_views_of_it_and_others_are_copies() -> None:
    (a, b, c, d), stack = two_by_two()
    column, row, mixed = settled([b, d]), make_row([c, d]), make_row([b, a])
    settle([row, mixed])
    assert (column.shape, row.shape, mixed.shape) == ((3, 1), (1, 4), (2, 4))
    assert lie_in(column.data, stack.data)
    assert lie_in(row.data, stack.data)
    assert not lie_in(mixed.data, stack.data)
    a.data[0] = 9
    assert stacks.refresh([stack, column, row, mixed]) == a.data.nbytes + b.data.nbytes
    assert mixed.data[0].tolist() == [6.0, 9.0, 9.0, 9.0]


@pytest.mark.parametrize("frozen", [(), (1,), (0, 3)])
def test_gradients_of_rows_are_rectangles_too(frozen: tuple[int, ...]) -> None:
    """Parameters without a gradient are left out. A stack of the others is added to in place."""
    parts, stack = two_by_two()
    named = {str(at): part for at, part in enumerate(parts) if at not in frozen}
    made = make_gradients(named, ()).of
    assert [np.asarray(made[name]).shape for name in named] == [part.shape for part in named.values()]
    if not frozen:
        targets = Targets({id(part): made[name] for name, part in named.items()}, [stack])
        add_in_place(targets.arrays[id(stack)], stack.data)
        assert targets.finish() == 0
        for name, part in named.items():
            np.testing.assert_array_equal(made[name], part.data)
    apart = {id(part): np.ones(part.shape) for part in parts}
    targets = Targets(apart, [stack])
    add_in_place(targets.arrays[id(stack)], stack.data)
    assert targets.finish() == stack.data.nbytes
    for part in parts:
        np.testing.assert_array_equal(apart[id(part)], part.data + 1)


def test_optimizers_and_clipping_treat_rectangles_as_any_array() -> None:
    for make in OPTIMIZERS.values():
        made = []
        for together in (False, True):
            (a, b, c, d), model = parameters((2, 3), (2, 1), (1, 3), (1, 1)), ab.Module()
            model.parts = [a, b, c, d]  # type: ignore[attr-defined]
            if together:
                settled([make_row([a, b]), make_row([c, d])])
            grads = make_gradients(model.parameters(), ()).of
            for gradient in grads.values():
                add_in_place(gradient, np.arange(np.prod(gradient.shape)).reshape(gradient.shape))
            optim = make(model)
            norms = [ab.optim.clip_by_norm(grads, limit) for limit in (100.0, 2.0)]
            for _ in range(2):
                optim.step(grads)
            made.append((norms, list(model.state_dict().values()), list(optim.state_dict()["arrays"].values())))
        assert made[0][0] == pytest.approx(made[1][0], rel=1e-12)
        for one, other in zip(made[0][1] + made[0][2], made[1][1] + made[1][2], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
            assert other.flags.c_contiguous


def test_planning_moves_parameters_and_changes_no_number() -> None:
    model, loss = make_loss()
    before, arrays = model.state_dict(), {name: p.data for name, p in model.parameters().items()}
    loss(draw_words(0))
    buffers = {name: p.buffer for name, p in model.parameters().items() if p.buffer is not None}
    assert sorted(buffers) == sorted(["table", "other", *(f"{k}.{n}" for k in "wub" for n in range(3))])
    assert all(model.parameters()[name].data is not arrays[name] for name in buffers)
    for name, numbers in model.state_dict().items():
        np.testing.assert_array_equal(numbers, before[name])


def test_a_parameter_that_two_cells_stack_otherwise_is_copied_once_per_run() -> None:
    """`read` stacks three weights. `compare` stacks two of them with its tables, possibly as copies."""
    model, loss = make_loss()
    loss.value_and_grad(draw_words(0))
    planned = planned_types(loss, training=True)
    moved = stacks.refresh(planned.stacks)
    assert len(planned.stacks) == 4
    assert moved in (0, 2 * model.w[0].data.nbytes)
    shared = (p.buffer for p in model.parameters().values() if isinstance(p.buffer, SharedBuffer))
    buffers = {id(buffer): buffer for buffer in shared}
    assert sum(len(buffer.owned) for buffer in buffers.values()) == 11


def train_all_ways(kind: type[Gates], stacked: bool, optimizer: str, folder: Path) -> list[float]:
    """Return the losses of steps between which parameters are cast, stored and loaded."""
    model, loss = make_loss(stacked=stacked, kind=kind)
    optim = OPTIMIZERS[optimizer](model)
    losses: list[float] = []

    def train(out: Any = None, seed: int = 0) -> Any:
        value, grads = loss.value_and_grad(draw_words(seed), out=out)
        losses.append(float(value))
        optim.step(grads)
        return grads

    for seed in range(3):
        grads = train(seed=seed)
    train({name: np.asarray(g).copy() for name, g in grads.items()})
    train(grads)
    model.astype("float32")
    loss.value_and_grad(draw_words(0))
    model.astype("float64")
    train()
    state = model.state_dict()
    model.load_state_dict({name: array + 0.125 for name, array in state.items()})
    train()
    model.load_state_dict(state)
    model.save(folder / "model")
    train()
    model.load(folder / "model")
    train()
    save_checkpoint(folder / "all", {name: p.data for name, p in model.parameters().items()}, {})
    train()
    model.load_state_dict(load_checkpoint(folder / "all").arrays)
    train()
    return losses


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", [Gates, Joined])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_gives_the_same_losses_as_unstacked(kind: type[Gates], optimizer: str, tmp_path: Path) -> None:
    """Also with given gradients, after a cast and back, a state dict, a file and a checkpoint."""
    losses, expected = (train_all_ways(kind, stacked, optimizer, tmp_path) for stacked in (True, False))
    np.testing.assert_allclose(losses[:5], expected[:5], rtol=1e-12)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)  # they were in float32 in between
    assert len(losses) == 11


@pytest.mark.parametrize("kind", [Gates, Joined])
def test_freezing_parameters_stacks_anew_and_gradients_stay_the_same(kind: type[Gates]) -> None:
    found = []
    for stacked in (False, True):
        model, loss = make_loss(stacked=stacked, kind=kind)
        made = []
        for frozen in ((), (0, 2), (1,), ()):
            for number, weight in enumerate(model.w):
                weight.trainable = number not in frozen
            value, grads = loss.value_and_grad(draw_words(0))
            made.append((float(value), {name: np.asarray(g).copy() for name, g in grads.items()}))
        found.append(made)
    for (value, grads), (other, others) in zip(*found, strict=True):
        assert value == pytest.approx(other, rel=1e-12)
        assert grads.keys() == others.keys()
        for name, gradient in grads.items():
            np.testing.assert_allclose(gradient, others[name], rtol=1e-12, atol=1e-12)
    assert [len(grads) for _, grads in found[0]] == [11, 9, 10, 11]


@pytest.mark.parametrize("kind", [Gates, Joined])
def test_a_mini_batch_in_parts_adds_to_stacked_gradients(kind: type[Gates]) -> None:
    model, loss = make_loss(kind=kind)
    words = draw_words(0, n=12)
    value, grads = loss.value_and_grad(words)
    whole = {name: np.asarray(g).copy() for name, g in grads.items()}
    needed = loss.prepare(words, training=True).parts[0].n_bytes
    split = ab.batched(model.loss, planner=MemoryPlanner(stacks=True), max_bytes=needed // 2)
    in_parts, grads = split.value_and_grad(words)
    assert split.last is not None
    assert split.last.parts > 1
    assert float(in_parts) == pytest.approx(float(value), rel=1e-12)
    for name, gradient in grads.items():
        np.testing.assert_allclose(gradient, whole[name], rtol=1e-12, atol=1e-12)
