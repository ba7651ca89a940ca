"""Prefetched mini-batches are those recorded when needed; errors, early ends and other threads' use of the model."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.nn.prefetching import prefetch


class Chain(ab.Module):
    """h' = tanh(W h + x) over a chain of numbers, with dropout; longer chains than 20 use a cell of their own."""

    def __init__(self) -> None:
        self.weight = ab.Parameter(np.random.default_rng(0).standard_normal((3, 3)))
        self.start = ab.Parameter(np.zeros(3))

    @ab.cell
    def step(self, h: Any, x: float) -> Any:
        return ab.dropout(ab.tanh(self.weight @ h + x), 0.3)

    @ab.cell
    def late_step(self, h: Any, x: float) -> Any:
        return ab.tanh(self.weight @ h - x)

    def loss(self, chain: list[float]) -> Any:
        h = self.start
        for place, x in enumerate(chain):
            h = self.step(h, x) if place < 20 else self.late_step(h, x)
        return ab.sum(h * h)


def chains(lengths: list[int], seed: int = 0) -> list[list[float]]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n).tolist() for n in lengths]


def minibatches() -> list[list[list[float]]]:
    """Of growing chains, so that new types come up while earlier mini-batches are computed."""
    return [chains([n, n + 1, n + 2], seed=n) for n in range(1, 30, 3)]


def train(prefetched: bool) -> list[Any]:
    """Losses and gradients of some steps."""
    model = Chain()
    loss = ab.batched(model.loss, seed=3)
    found = []
    for batch in loss.prefetch(minibatches()) if prefetched else minibatches():
        value, grads = loss.value_and_grad(batch)
        assert loss.last is not None
        found.append((float(value), {name: np.array(gradient) for name, gradient in grads.items()}, loss.last.nodes))
        ab.optim.SGD(model, lr=0.1).step(grads)
    return found


def wait_for_threads(n: int) -> int:
    """The number of threads once it is down to n, or after a second."""
    deadline = time.monotonic() + 1.0
    while threading.active_count() > n and time.monotonic() < deadline:
        time.sleep(0.001)
    return threading.active_count()


def test_training_is_the_same_to_the_last_bit() -> None:
    plain, ahead = train(prefetched=False), train(prefetched=True)
    assert len(plain) == len(ahead) == 10
    for (value, grads, nodes), (value_ahead, grads_ahead, nodes_ahead) in zip(plain, ahead, strict=True):
        assert (value, nodes) == (value_ahead, nodes_ahead)
        for name, gradient in grads.items():
            np.testing.assert_array_equal(gradient, grads_ahead[name])


def test_a_minibatch_is_a_list_of_graphs_and_graphs_pass() -> None:
    loss = ab.batched(Chain().loss)
    (batch,) = loss.prefetch([chains([3, 1])])
    assert [graph.n_nodes for graph in batch] == [6, 4]
    assert [graph.key for graph in batch] == [0, 1]
    (again,) = loss.prefetch([batch])
    assert all(a is b for a, b in zip(again, batch, strict=True))
    assert list(loss.prefetch([])) == []


def test_the_model_is_free_for_other_uses_while_a_thread_records() -> None:
    """Eager calls, copies and parameters of the model are what they were, at the very moment of a recording."""
    model = Chain().eval()
    recording, done = threading.Event(), threading.Event()

    def slow_loss(chain: list[float]) -> Any:
        total = model.loss(chain)
        if len(chain) == 4:
            recording.set()
            assert done.wait(10)
        return total + model.loss(chain)

    loss = ab.batched(slow_loss, module=model)
    chain = chains([4])[0]
    expected = float(model.loss(chain))
    names, members = list(model.parameters()), set(vars(model))

    prefetched = loss.prefetch([[[0.5]], [chain]])
    next(prefetched)
    assert recording.wait(10)
    assert float(model.loss(chain)) == expected
    assert set(vars(model)) == members
    assert float(copy.deepcopy(model).loss(chain)) == expected
    assert list(model.parameters()) == names
    done.set()
    (batch,) = list(prefetched)
    np.testing.assert_allclose(loss(batch), [2 * expected], rtol=1e-6)


def test_one_thread_makes_one_item_ahead_in_order() -> None:
    drawn: list[int] = []
    makers: set[int] = set()

    def items() -> Iterator[int]:
        for number in range(20):
            drawn.append(number)
            yield number

    def make(number: int) -> int:
        makers.add(threading.get_ident())
        return number * number

    found = []
    for number, square in enumerate(prefetch(items(), make)):
        assert len(drawn) <= number + 2
        found.append(square)
    assert found == [number * number for number in range(20)]
    assert len(makers) == 1
    assert threading.get_ident() not in makers


@pytest.mark.parametrize("at", [0, 1, 4])
@pytest.mark.parametrize("where", ["drawing", "recording"])
def test_an_error_comes_where_the_minibatch_would_have_come(at: int, where: str) -> None:
    before = threading.active_count()
    error = KeyError("the very same")

    def batches() -> Iterator[list[Any]]:
        for number in range(6):
            if number == at and where == "drawing":
                raise error
            yield [number]

    def loss(number: int) -> Any:
        if number == at:
            raise error
        return ab.sum(np.ones(2) * number)

    found: list[Any] = []
    with pytest.raises(KeyError) as caught:
        found.extend(ab.batched(loss).prefetch(batches()))
    assert caught.value is error
    assert len(found) in (0, at)
    prefetched = ab.batched(loss).prefetch(batches())
    for _ in range(at):
        assert len(next(prefetched)) == 1
    with pytest.raises(KeyError):
        next(prefetched)
    assert list(prefetched) == []
    assert wait_for_threads(before) == before


def test_errors_of_recording_are_those_of_a_plain_call() -> None:
    loss = ab.batched(Chain().loss)
    with pytest.raises(ab.DataError, match="a mini-batch is a list of instances, not 3"):
        list(loss.prefetch([3]))  # type: ignore[list-item]
    strange = ab.batched(lambda n: ab.lookup(np.ones((4, 2)), n))
    for run in (lambda: strange([0, 9]), lambda: list(strange.prefetch([[0, 9]]))):
        with pytest.raises((ab.DataError, IndexError)) as caught:
            run()
        assert "9" in str(caught.value)


@pytest.mark.parametrize("leave", ["break", "raise", "close", "drop"])
def test_leaving_the_loop_ends_the_thread(leave: str) -> None:
    before = threading.active_count()
    drawn: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            drawn.append(len(drawn))
            yield len(drawn)

    def run() -> None:
        made = prefetch(endless(), lambda number: number)
        if leave == "close":
            next(made)
            made.close()  # type: ignore[attr-defined]
        elif leave == "drop":
            next(made)
            del made
        else:
            for _ in made:
                if leave == "break":
                    break
                raise KeyboardInterrupt

    if leave == "raise":
        with pytest.raises(KeyboardInterrupt):
            run()
    else:
        run()
    assert wait_for_threads(before) == before
    assert len(drawn) <= 2


def test_nothing_starts_before_the_first_minibatch_is_asked_for() -> None:
    before = threading.active_count()
    made = prefetch([1], lambda number: number)
    assert threading.active_count() == before
    assert list(made) == [1]
