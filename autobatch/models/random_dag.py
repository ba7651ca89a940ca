"""Cells of several types over a random directed acyclic graph, one instance at a time.

    h_v = tanh(V_k tanh(U_k Σ_w h_w + b_k) + c_k)     k is the kind of node v, w the nodes that it reads

Each kind has its own parameters, and is thus a type for batching. Kinds come in any order and read nodes of any kind,
so the order of types matters: the more nodes of a type are ready, the fewer batches are needed.

Source: our own; it is the general batching problem of section 2 of Chen, Fegade, Chen, Gibbons and Mowry 2023, ED-Batch
(arXiv:2302.03851).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.circuit import Circuit
from autobatch.models.data.dataset import CIRCUITS, load_circuits
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tags, pick_best, predict_tags, tag_probabilities
from autobatch.models.spec import Counts, ModelSpec


class Kind(ab.Module):
    """The parameters of one kind of node: two layers of width `dim`."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.inner = ab.Linear(dim, dim, rng=rng)
        self.outer = ab.Linear(dim, dim, rng=rng)


class RandomDag(ab.Module):
    """Two layers for each kind of node, and one output layer for all.

    Args:
        n_kinds: kinds of nodes are 0 to n_kinds - 1.
        n_tags: C, tags are 0 to C - 1.
        dim: H, width of states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_kinds: int, n_tags: int, dim: int, rng: np.random.Generator) -> None:
        self.kinds = [Kind(dim, rng) for _ in range(n_kinds)]
        self.output = ab.Linear(dim, n_tags, rng=rng)
        self.dim = dim

    @ab.cell
    def node(self, kind: Kind, inputs: Sequence[Any]) -> Any:
        """Compute the state of a node (H,) from any number of inputs (H,)."""
        total = ab.sum_n(inputs, shape=(self.dim,))
        return ab.tanh(kind.outer(ab.tanh(kind.inner(total))))

    @ab.cell
    def tag_loss(self, h: Any, tag: int) -> Any:
        """Compute the cross-entropy of a node's tag: a scalar."""
        return ab.cross_entropy(self.output(h), tag)

    @ab.cell
    def tag_scores(self, h: Any) -> Any:
        """Score the tags of a node: logits (C,)."""
        return self.output(h)

    def states(self, circuit: Circuit[int]) -> list[Any]:
        """Compute the states of all nodes, in their order."""
        states: list[Any] = []
        for kind, inputs in zip(circuit.kinds, circuit.inputs, strict=True):
            states.append(self.node(self.kinds[kind], [states[node] for node in inputs]))
        return states

    def loss(self, circuit: Circuit[int]) -> Any:
        """Sum the cross-entropies of all nodes: a scalar."""
        return ab.sum_n([self.tag_loss(h, tag) for h, tag in zip(self.states(circuit), circuit.tags, strict=True)])

    def scores(self, circuit: Circuit[int]) -> Any:
        """Score the tags of all nodes: a list of (C,)."""
        return [self.tag_scores(h) for h in self.states(circuit)]


def count_correct(outputs: Any, circuits: Sequence[Circuit[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct tags and all tags, and circuits whose tags are all correct, from logits per circuit and node."""
    pairs = list(zip(pick_best(outputs, vocabularies["tags"]), [circuit.tags for circuit in circuits], strict=True))
    n_right = sum(found == tags for found, tags in pairs)
    return {"tag_accuracy": count_tags(*zip(*pairs, strict=True)), "exact": (n_right, len(pairs))}


SPEC = ModelSpec(
    name="random-dag",
    summary="cells of several types over a random directed acyclic graph, tagging its nodes",
    model=RandomDag,
    generators=tuple(CIRCUITS.generators),
    reads=CIRCUITS.reads,
    default_data="circuits",
    load=load_circuits,
    load_inputs=load_circuits.inputs,
    count_correct=count_correct,
    predict=predict_tags,
    probabilities=tag_probabilities,
)
