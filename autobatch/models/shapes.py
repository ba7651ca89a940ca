"""Graphs with the structure of the models, but without numbers, to learn, bound and compare batching policies.

A mini-batch is one graph with one sum of all its losses, as in ED-Batch (arXiv:2302.03851). Constant states, such as
the first of a chain, are not nodes, and a sum of one value is that value. The definition of types changes the number of
batches more than the policy does, so lattices have three forms:

    arity      sums of two, three, ... values are different types, as for kernels with a fixed number of inputs
    variadic   all sums are one type
    folded     no sums: readers of a sum read its values, as after the rewrite "fold" of the recorded model
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from autobatch.errors import GraphError
from autobatch.graph.graph import Graph
from autobatch.graph.sketch import Sketch, to_graph
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.tree import Tree

LATTICE_FORMS = ("arity", "variadic", "folded")


def make_tree_graph(trees: Sequence[Tree[Any]]) -> Graph:
    """Make the graph of trees with an output and a loss at every node, and one sum.

    Types: leaf, inner, output, loss, sum.

    >>> good, film = Tree.leaf(2, "good"), Tree.leaf(2, "film")
    >>> make_tree_graph([Tree.inner(3, good, film)])
    Graph(instances=1, nodes=10, edges=11, types=5, outputs=0)
    """
    return _make_tree_graph(trees, ("leaf", "inner", "output", "loss", "sum"), lambda n: [1] * n)


def make_two_type_tree_graph(trees: Sequence[Tree[Any]], rng: np.random.Generator) -> Graph:
    """Make the graph of trees as `make_tree_graph`, with one of two random types for each inner node.

    Types: leaf, inner_a, inner_b, output, loss, sum.

    >>> good, film = Tree.leaf(2, "good"), Tree.leaf(2, "film")
    >>> graph = make_two_type_tree_graph([Tree.inner(3, good, film)], np.random.default_rng(0))
    >>> graph.type_of(6)
    'inner_b'
    """
    names = ("leaf", "inner_a", "inner_b", "output", "loss", "sum")
    return _make_tree_graph(trees, names, lambda n: rng.integers(1, 3, size=n).tolist())


def make_lattice_graph(lattices: Sequence[Lattice[Any]], form: str = "variadic") -> Graph:
    """Make the graph of lattices with an output at every position but the first, and one loss for all.

    An arc reads the value of the position where it starts, which is the sum over the arcs that end there.

    Types: character, word, output, loss; variadic: and sum; arity: and sum2, sum3, ... up to the most arcs at once.

    Args:
        lattices: a mini-batch.
        form: one of `LATTICE_FORMS`.

    Raises:
        GraphError: the form is unknown.

    >>> lattice = Lattice([0, 1, 2], [[], [(0, 5)], [(1, 6), (0, 9)]])
    >>> [make_lattice_graph([lattice], form).n_nodes for form in LATTICE_FORMS]
    [7, 7, 6]
    """
    if form not in LATTICE_FORMS:
        raise GraphError(f"form of make_lattice_graph must be one of {', '.join(LATTICE_FORMS)}, got {form!r}.")
    character, word, output, loss, first_sum = range(5)
    most_arcs = max((len(arcs) for lattice in lattices for arcs in lattice.arcs), default=0)
    sums = {"arity": [f"sum{n}" for n in range(2, most_arcs + 1)], "variadic": ["sum"], "folded": []}[form]
    names = ["character", "word", "output", "loss", *sums]
    sketch = Sketch(len(names))
    outputs = []
    for lattice in lattices:
        values: list[list[int]] = [[]]
        for end in range(1, len(lattice.arcs)):
            arcs = [
                sketch.add(character if start == end - 1 else word, values[start]) for start, _ in lattice.arcs[end]
            ]
            if form == "folded" or len(arcs) == 1:
                values.append(arcs)
            else:
                values.append([sketch.add(first_sum + (len(arcs) - 2 if form == "arity" else 0), arcs)])
            outputs.append(sketch.add(output, values[end]))
    sketch.add(loss, outputs)
    return to_graph(sketch.to_dag(), names)


def make_tagger_graph(sentences: Sequence[Sentence[Any]]) -> Graph:
    """Make the graph of sentences read in both directions, with an output and a loss at every word, and one sum.

    Types: forward, backward, output, loss, sum.

    >>> make_tagger_graph([Sentence(["Paris", "is", "old"], ["LOC", "O", "O"])])
    Graph(instances=1, nodes=13, edges=16, types=5, outputs=0)
    """
    names = ("forward", "backward", "output", "loss", "sum")
    forward, backward, output, loss, total = range(len(names))
    sketch = Sketch(len(names))
    losses = []
    for sentence in sentences:
        states: dict[int, list[int]] = {}
        for direction in (forward, backward):
            states[direction] = []
            for _ in sentence.words:
                states[direction].append(sketch.add(direction, states[direction][-1:]))
        for pair in zip(states[forward], reversed(states[backward]), strict=True):
            losses.append(sketch.add(loss, [sketch.add(output, pair)]))
    sketch.add(total, losses)
    return to_graph(sketch.to_dag(), names)


SHAPES: Mapping[str, Callable[[Sequence[Any], np.random.Generator], Graph]] = {
    "tree-lstm": lambda trees, rng: make_tree_graph(trees),
    "tree-lstm-2type": make_two_type_tree_graph,
    "bilstm-tagger": lambda sentences, rng: make_tagger_graph(sentences),
    "lattice-lstm, arity": lambda lattices, rng: make_lattice_graph(lattices, "arity"),
    "lattice-lstm, variadic": lambda lattices, rng: make_lattice_graph(lattices, "variadic"),
    "lattice-lstm, folded": lambda lattices, rng: make_lattice_graph(lattices, "folded"),
}
"""Model name to the function that makes the graph of a mini-batch; `rng` draws choices that are not in the data."""


def _make_tree_graph(
    trees: Sequence[Tree[Any]], names: Sequence[str], inner_kinds: Callable[[int], list[int]]
) -> Graph:
    """Make the graph of trees; `inner_kinds(n)` returns the types of a tree's n inner nodes, in postorder."""
    output, loss, total = range(len(names) - 3, len(names))
    sketch = Sketch(len(names))
    losses = []
    for tree in trees:
        nodes = list(tree.postorder())
        kinds = iter(inner_kinds(len(nodes) // 2))  # of 2 n + 1 nodes, n are inner ones
        states: list[int] = []
        for node in nodes:
            if node.is_leaf:
                state = sketch.add(0)
            else:
                right, left = states.pop(), states.pop()
                state = sketch.add(next(kinds), (left, right))
            states.append(state)
            losses.append(sketch.add(loss, (sketch.add(output, (state,)),)))
    sketch.add(total, losses)
    return to_graph(sketch.to_dag(), names)
