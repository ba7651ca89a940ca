"""Test invalid ints and objects in the loops that rewrite graphs: an exception or a result, never a crash."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from autobatch._native import count_shared, rewrite_words
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.ir.type_arrays import TypeArrays
from helpers.programs.graphs import TOYS, random_toys
from helpers.runs.ways import each

PECULIAR = np.array([-(2**31), -2, -1, 0, 1, 2, 7, 255, 256, 2**30, 2**31 - 1])
ALL = 63


def draw(seed: int) -> Graph:
    return merge_graphs([random_toys(seed), random_toys(seed), random_toys(seed + 1000)])


def spoilt(rng: np.random.Generator, array: Any) -> Any:
    """Return a copy with some invalid ints or another length."""
    wrong = array.copy()
    if wrong.size and rng.random() < 0.9:
        near = rng.choice(wrong.ravel()) + rng.integers(-1, 2)
        wrong.flat[rng.integers(wrong.size, size=rng.integers(1, 4))] = (
            rng.choice(PECULIAR) if rng.random() < 0.5 else near
        )
        return wrong
    return wrong[: rng.integers(len(wrong) + 1)] if rng.random() < 0.5 else np.concatenate((wrong, wrong[:1]))


def spoil(rng: np.random.Generator, graph: Graph) -> tuple[Any, Any, TypeArrays]:
    """Return the words, floats and types of a graph, with one of them, or two of the types, invalid."""
    words, floats, types = graph.words, graph.floats, graph.types.arrays()
    which = rng.integers(5)
    if which == 0:
        floats = floats[: rng.integers(floats.size + 1)]
    elif which <= 2:
        words = spoilt(rng, words)
    else:
        for name in rng.choice(types._fields, size=which - 2):
            types = types._replace(**{name: spoilt(rng, getattr(types, name))})
    return words, floats, types


@each("seed", range(200))
def test_wrong_ints_do_no_harm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = draw(seed)
    for _ in range(25):
        given = spoil(rng, graph)
        before = [np.array(part) for part in (given[0], given[1], *given[2])]
        with suppress(ValueError, OverflowError):
            rewrite_words(*given, int(rng.integers(ALL + 1)))
        with suppress(ValueError, OverflowError):
            count_shared(*given, bool(rng.integers(2)))
        for part, array in zip((given[0], given[1], *given[2]), before, strict=True):
            assert np.array_equal(part, array, equal_nan=True)


def test_wrong_objects_are_refused() -> None:
    graph = draw(0)
    call: Any = rewrite_words
    given: list[Any] = [graph.words, graph.floats, TOYS.arrays(), ALL]
    bad: list[list[Any]] = [
        [None, graph.words.tolist(), graph.words.astype(np.int64), graph.words[::2], graph.words.reshape(1, -1), b"x"],
        [None, graph.floats.astype(np.float32), graph.floats[::-1], 1.0],
        [None, (), tuple(TOYS.arrays())[1:], (*TOYS.arrays()[:-1], None), list(TOYS.arrays())],
        [None, "all", 2**70, 1.5],
    ]
    for place, values in enumerate(bad):
        for value in values:
            with pytest.raises((TypeError, ValueError, OverflowError)):
                call(*given[:place], value, *given[place + 1 :])
    with pytest.raises(TypeError, match="rewrite_words must be given 4 arguments, got 3"):
        call(*given[:3])
    with pytest.raises(TypeError, match="count_shared must be given 4 arguments, got 0"):
        count_shared()  # type: ignore[call-arg]


def test_what_is_wrong_with_a_graph_is_said() -> None:
    graph = make_graph(NamedTypes(("a", "b")), [0, 1], [(0, 1)], [1])
    types = graph.types.arrays()
    words = graph.words.copy()
    Graph(words, graph.floats, graph.types, (None,)).edge_src[0] = 1
    with pytest.raises(ValueError, match="words must encode a graph, got ones in which an edge points backwards"):
        rewrite_words(words, graph.floats, types, ALL)
    with pytest.raises(ValueError, match="floats must be as many as words say, 0, got 1"):
        rewrite_words(graph.words, np.zeros(1), types, ALL)
    work = types.product_work.copy()
    work[0] = 2**62
    with pytest.raises(ValueError, match=r"product_work must be in 0\.\.\d+ for 2 nodes, got 4611686018427387904"):
        rewrite_words(graph.words, graph.floats, types._replace(product_work=work), ALL)


def test_what_does_not_change_is_given_back() -> None:
    graph = make_graph(NamedTypes(("a", "b")), [0, 1], [(0, 1)], [1])
    words, floats, changes = rewrite_words(graph.words, graph.floats, graph.types.arrays(), ALL)
    assert words is graph.words
    assert floats is graph.floats
    assert changes == (0,) * 8
