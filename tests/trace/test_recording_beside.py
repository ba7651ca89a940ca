"""Test what other threads may do with a model during a recording: their calls are eager, and copies are complete."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest

import autobatch as ab
from helpers.runs.ways import each

WORDS = 5


class Words(ab.Module):
    """A model that sums the states of words; its cells take a word, nothing, arrays and lists, or states."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.table = ab.Parameter(rng.standard_normal((WORDS, 3)))
        self.start = ab.Parameter(rng.standard_normal(3))

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.lookup(self.table, word)

    @ab.cell
    def begin(self) -> Any:
        return ab.tanh(self.start)

    @ab.cell
    def scale(self, x: float = 2.0) -> Any:
        return self.start * x

    @ab.cell
    def bag(self, words: Any) -> Any:
        return ab.sum(ab.lookup(self.table, words), axis=0)

    @ab.cell
    def merge(self, left: Any, right: Any) -> Any:
        return ab.tanh(left + right)

    @ab.cell
    def total(self, states: Any) -> Any:
        return ab.sum_n(states, shape=(3,))

    def loss(self, words: list[int]) -> Any:
        state = self.merge(self.begin(), self.scale(x=3.0))
        for word in words:
            state = self.merge(state, self.leaf(word))
        return ab.sum(self.total([state, self.bag(np.array(words)), self.total([])]))


CALLS: dict[str, Callable[[Words], Any]] = {
    "a word": lambda model: model.leaf(3),
    "nothing": lambda model: model.begin(),
    "a number": lambda model: model.scale(x=3.0),
    "a default": lambda model: model.scale(),
    "ids": lambda model: model.bag(np.array([1, 2])),
    "arrays": lambda model: model.merge(np.ones(3), np.zeros(3)),
    "an empty list": lambda model: model.total([]),
    "a list": lambda model: model.total([np.ones(3), np.ones(3)]),
    "a program": lambda model: model.loss([1, 4]),
    "a deep copy": lambda model: copy.deepcopy(model).loss([1, 4]),
    "a pickle": lambda model: pickle.loads(pickle.dumps(model)).loss([1, 4]),
    "a shallow copy": lambda model: copy.copy(model).loss([1, 4]),
}


INSTANCES = [[1, 2], [3], [4, 0, 1]]


class Pausing:
    """The loss of a model, which waits in the middle of an instance once `pauses` is set."""

    def __init__(self, model: Words) -> None:
        self.model, self.pauses = model, False
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self, words: list[int]) -> Any:
        if self.pauses and words == INSTANCES[1]:
            self.reached.set()
            assert self.go_on.wait(10)
        return self.model.loss(words)


@contextmanager
def being_recorded(loss: Any, pausing: Pausing) -> Iterator[list[Any]]:
    """Run the block while another thread is recording; yield a list that holds its graphs afterwards."""
    found = list[Any]()
    thread = threading.Thread(target=lambda: found.extend(loss.record_all(INSTANCES)))
    pausing.pauses = True
    thread.start()
    assert pausing.reached.wait(10)
    try:
        yield found
    finally:
        pausing.go_on.set()
        thread.join()


@pytest.mark.slow
@each("known", [False, True])
@each("call", CALLS)
def test_an_eager_call_beside_a_recording_is_eager(call: str, known: bool) -> None:
    """Known or new to the recording, the call must not affect what is recorded."""
    model = Words()
    pausing = Pausing(model)
    loss = ab.batched(pausing, module=model)
    expected_graphs = [str(graph) for graph in ab.batched(model.loss).record_all(INSTANCES)]
    expected, losses = CALLS[call](model), [model.loss(words) for words in INSTANCES]
    if known:
        loss(INSTANCES)
    with being_recorded(loss, pausing) as graphs:
        found = CALLS[call](model)
        assert isinstance(found, np.ndarray | np.floating)
        np.testing.assert_array_equal(found, expected)
    assert [str(graph) for graph in graphs] == expected_graphs
    np.testing.assert_allclose(loss(graphs), losses, rtol=1e-6)


def test_two_functions_record_a_model_at_once() -> None:
    """While one recording waits, another thread records, traces and runs the same cells from scratch."""
    model = Words()
    pausing = Pausing(model)
    loss = ab.batched(pausing, module=model)
    expected = [model.loss(words) for words in INSTANCES]
    with being_recorded(loss, pausing) as graphs:
        other = ab.batched(model.loss)
        np.testing.assert_allclose(other(INSTANCES), expected, rtol=1e-6)
        assert not graphs
    np.testing.assert_allclose(loss(graphs), expected, rtol=1e-6)


def test_cells_are_methods_of_objects_whose_classes_have_them() -> None:
    """However they are looked up, and whenever the class got them. Any other first argument is a plain argument."""

    @ab.cell
    def scaled(self: Any, x: Any) -> Any:
        return ab.tanh(x * (self.start if isinstance(self, Words) else self))

    class Later(Words):
        scaled: ClassVar[Any]

        def loss(self, words: list[int]) -> Any:
            x = Words.leaf(self, words[0])
            for state in (self.scaled(x), type(self).scaled(self, x), scaled(self, x), scaled(x, x), super().leaf(2)):
                x = self.merge(x, state)
            return ab.sum(x)

    model = Later()
    with pytest.raises(AttributeError, match="scaled"):
        model.loss([1])
    Later.scaled = scaled
    loss = ab.batched(model.loss)
    np.testing.assert_allclose(loss(INSTANCES), [model.loss(words) for words in INSTANCES], rtol=1e-6)
    graph = loss.record_all([[1]])[0]
    types = [graph.type_of(node) for node in range(graph.n_nodes)]
    assert [name for name in types if name.startswith("scaled")] == ["scaled#1"] * 3 + ["scaled#2"]


def test_what_stood_in_for_a_cell_is_the_cell_afterwards() -> None:
    """A program may keep a bound method that it got while recording and call it later."""
    model, kept = Words(), list[Any]()

    def loss(words: list[int]) -> Any:
        kept.append((model.leaf, model.merge))
        return model.loss(words)

    ab.batched(loss, module=model).record_all([[1, 2]])
    leaf, merge = kept[-1]
    np.testing.assert_array_equal(leaf(3), model.leaf(3))
    np.testing.assert_array_equal(merge(np.ones(3), right=np.zeros(3)), model.merge(np.ones(3), np.zeros(3)))


def test_a_cell_calls_what_stands_for_another() -> None:
    """In a trace, the call becomes part of the calling cell."""
    model = Words()

    def loss(word: int) -> Any:
        leaf = model.leaf

        @ab.cell
        def twice(x: Any) -> Any:
            return ab.sum(leaf(2) + leaf(2) + x)

        return twice(model.leaf(word))

    batched = ab.batched(loss, module=model)
    (graph,) = batched.record_all([1])
    assert [graph.type_of(node) for node in range(graph.n_nodes)] == ["leaf", "twice"]
    np.testing.assert_allclose(batched([1, 3]), [loss(1), loss(3)], rtol=1e-6)


def test_copies_of_modules_keep_slots() -> None:
    class Slotted(Words):
        __slots__ = ("extra",)
        extra: int

    model = Slotted()
    model.extra = 5
    for twin in (copy.copy(model), copy.deepcopy(model)):
        assert twin.extra == 5
        np.testing.assert_array_equal(twin.leaf(2), model.leaf(2))
