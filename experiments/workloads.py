"""The workloads that batching policies are compared on: mini-batches as graphs of types and edges.

Trees, sentences and lattices are real if the data exists beside the checkout, else drawn. Random dags are drawn; each
of their nodes has a type drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from autobatch.graph.graph import Graph
from autobatch.graph.sketch import Sketch, to_graph
from autobatch.models.data.dag import draw_dags
from autobatch.models.data.dataset import Dataset, load_lattices, load_sentences
from autobatch.models.data.lattice import Lattice
from autobatch.models.shapes import LATTICE_FORMS, SHAPES
from harness import find_data, load_sst_or_listops, name_of

N_DAGS = 6400  # 25 mini-batches of 256


@dataclass(frozen=True)
class Items:
    """The items that mini-batches are made of, in order, and the name of the data."""

    data: str
    items: Sequence[Any]


@dataclass(frozen=True)
class Workload:
    """A function that loads items by a seed, and one that makes a graph of some of them."""

    load: Callable[[int], Items]
    make_graph: Callable[[Sequence[Any], np.random.Generator], Graph]

    def minibatches(self, size: int, count: int, seed: int) -> tuple[str, list[Graph]]:
        """Make mini-batches of the items in order. Return the name of the data too.

        After the last item, further mini-batches are drawn from all items except those of the first mini-batch, without
        repeating an item within one.
        """
        found = self.load(seed)
        rng = np.random.default_rng([seed, size])
        graphs = []
        for k in range(0, count * size, size):
            items = found.items[k : k + size]
            if len(items) < size:
                items = [found.items[i] for i in size + rng.choice(len(found.items) - size, size, replace=False)]
            graphs.append(self.make_graph(items, rng))
        return found.data, graphs


def make_random_graph(dags: Sequence[Lattice[Any]], rng: np.random.Generator, n_types: int) -> Graph:
    """Make the graph of random dags: a node reads the nodes where its arcs start."""
    sketch = Sketch(n_types)
    for dag in dags:
        first = len(sketch.inputs)
        for kind, arcs in zip(rng.integers(n_types, size=len(dag.arcs)).tolist(), dag.arcs, strict=True):
            sketch.add(kind, sorted(first + start for start, _ in arcs))
    return to_graph(sketch.to_dag(), [f"type{kind}" for kind in range(n_types)])


def _load_trees(seed: int) -> Items:
    return _training_items(load_sst_or_listops(seed))


def _load_sentences(seed: int) -> Items:
    return _training_items(load_sentences(find_data("wikiner") or "tagging", np.random.default_rng(seed)))


def _load_lattices(seed: int) -> Items:
    return _training_items(load_lattices(find_data("lattice") or "lattices", np.random.default_rng(seed)))


def _draw_dags(seed: int) -> Items:
    return Items("random-dag", draw_dags(N_DAGS, np.random.default_rng(seed)))


def _training_items(dataset: Dataset) -> Items:
    return Items(name_of(dataset), dataset.train)


WORKLOADS: Mapping[str, Workload] = {
    "tree-lstm": Workload(_load_trees, SHAPES["tree-lstm"]),
    "bilstm-tagger": Workload(_load_sentences, SHAPES["bilstm-tagger"]),
    **{f"lattice-lstm-{form}": Workload(_load_lattices, SHAPES[f"lattice-lstm, {form}"]) for form in LATTICE_FORMS},
    "tree-lstm-2type": Workload(_load_trees, SHAPES["tree-lstm-2type"]),
    **{
        f"random-dag-{n_types}": Workload(_draw_dags, partial(make_random_graph, n_types=n_types))
        for n_types in (2, 4, 8)
    },
}
