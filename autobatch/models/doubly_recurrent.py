"""Network that grows a tree from its root, one instance at a time.

A node depends on two states: the ancestral one has read the labels above the node, and the fraternal one those of its
preceding siblings. With v the vectors of labels, p the parent of a node and s its preceding sibling, the states are

    ancestral:   a = LSTM_a(v_p, a_p),    at the root the state of an LSTM that has read the text
    fraternal:   f = LSTM_f(v_s, f_s),    0 at the first sibling

Decisions at the node read tanh(W [a; f]), with h of both states. Training uses given trees. In generation, the program
awaits at every node the most likely label, whether it has children, and whether a sibling follows. Subtrees grow
concurrently.

Source: Alvarez-Melis and Jaakkola 2017, Tree-structured decoding with doubly-recurrent neural networks (ICLR), section
3, on top of an LSTM that reads a text, as in their section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import DESCRIBED_TREES, load_described_trees
from autobatch.models.data.ordered_tree import DescribedTree, OrderedTree
from autobatch.models.data.vocabulary import UNKNOWN
from autobatch.models.metric import count_edges, predict_trees
from autobatch.models.spec import ModelSpec


class NodeStates(ab.Module):
    """Embeddings of words and labels, three LSTMs, and a layer that combines two states.

    Args:
        n_words: word ids of texts are 0 to n_words - 1.
        n_labels: C, labels of nodes are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
    """

    def __init__(self, n_words: int, n_labels: int, dim: int, rng: np.random.Generator) -> None:
        self.words = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.labels = ab.Parameter(0.1 * rng.standard_normal((n_labels, dim)))
        self.encoder = ab.LSTMCell(dim, dim, rng=rng)
        self.ancestral = ab.LSTMCell(dim, dim, rng=rng)
        self.fraternal = ab.LSTMCell(dim, dim, rng=rng)
        self.join = ab.Linear(2 * dim, dim, rng=rng, bias=False)
        self.first = np.zeros(dim), np.zeros(dim)

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Return the state, h (H,) and c (H,), after reading a word of the text."""
        return self.encoder(ab.lookup(self.words, word), state)

    @ab.cell
    def descend(self, label: int, state: Any) -> Any:
        """Return the ancestral state of a node's children, from its label and state."""
        return self.ancestral(ab.lookup(self.labels, label), state)

    @ab.cell
    def pass_on(self, label: int, state: Any) -> Any:
        """Return the fraternal state of a node's next sibling, from its label and state."""
        return self.fraternal(ab.lookup(self.labels, label), state)

    def hidden(self, above: Any, before: Any) -> Any:
        """Combine the ancestral and the fraternal state of a node, inside a cell: (H,)."""
        return ab.tanh(self.join(ab.concat((above[0], before[0]))))

    def encode(self, words: Sequence[int]) -> Any:
        """Read a text; return the ancestral state of the root."""
        state: Any = self.first
        for word in words:
            state = self.read(word, state)
        return state


class DoublyRecurrent(NodeStates):
    """The states of nodes, and layers for the decisions at each node.

    Args:
        n_words, n_labels, dim, rng: as for `NodeStates`; labels are 0 to C - 1.
        max_steps: largest number of steps, down or sideways, from the root to a grown node; bounds trees to 2^max_steps
            nodes.
    """

    def __init__(self, n_words: int, n_labels: int, dim: int, rng: np.random.Generator, max_steps: int = 10) -> None:
        super().__init__(n_words, n_labels, dim, rng)
        self.topology = ab.Linear(dim, 2, rng=rng)
        self.output = ab.Linear(dim, n_labels, rng=rng)
        self.parent_scores = ab.Parameter(0.1 * rng.standard_normal(n_labels))
        self.sibling_scores = ab.Parameter(0.1 * rng.standard_normal(n_labels))
        self.max_steps = max_steps

    @ab.cell
    def node_loss(self, above: Any, before: Any, label: int, is_parent: int, goes_on: int) -> Any:
        """Compute the loss of a node's label, and of whether it has children and a next sibling (1 or 0): a scalar."""
        hidden = self.hidden(above, before)
        topology = self.topology(hidden)
        wrong = ab.sum(ab.softplus(topology)) - is_parent * topology[0] - goes_on * topology[1]
        return wrong + ab.cross_entropy(self.scores(hidden, is_parent, goes_on), label)

    @ab.cell
    def decide(self, above: Any, before: Any) -> Any:
        """Decide the label of a node, and whether it has children and a next sibling (1 or 0).

        The label is an int counted from the first named label; the unknown label before it is never generated.
        """
        hidden = self.hidden(above, before)
        topology = self.topology(hidden)
        is_parent, goes_on = topology[0] > 0.0, topology[1] > 0.0
        return ab.argmax(self.scores(hidden, is_parent, goes_on)[UNKNOWN + 1 :]), is_parent, goes_on

    def scores(self, hidden: Any, is_parent: Any, goes_on: Any) -> Any:
        """Score the labels of a node, inside a cell: logits (C,)."""
        return self.output(hidden) + is_parent * self.parent_scores + goes_on * self.sibling_scores

    def loss(self, described: DescribedTree[int]) -> Any:
        """Sum the losses of all nodes of a tree: a scalar."""
        losses = []
        waiting = [([described.tree], self.encode(described.words))]
        while waiting:
            siblings, above = waiting.pop()
            before: Any = self.first
            for place, node in enumerate(siblings, start=1):
                is_parent, goes_on = bool(node.children), place < len(siblings)
                losses.append(self.node_loss(above, before, node.label, int(is_parent), int(goes_on)))
                if is_parent:
                    waiting.append((node.children, self.descend(node.label, above)))
                if goes_on:
                    before = self.pass_on(node.label, before)
        return ab.sum_n(losses)

    async def grow(self, words: Sequence[int]) -> OrderedTree[int]:
        """Grow the tree of a text."""
        root, *_ = await self.grow_siblings(self.encode(words), self.first, self.max_steps)
        return root

    async def grow_siblings(self, above: Any, before: Any, n_steps: int) -> list[OrderedTree[int]]:
        """Grow a node and its following siblings with their subtrees, up to `n_steps` steps."""
        label, *decided = (int(x) for x in await ab.value(self.decide(above, before)))
        label += UNKNOWN + 1
        is_parent, goes_on = decided if n_steps > 1 else (False, False)
        children, siblings = await ab.gather(
            self.grow_siblings(self.descend(label, above), self.first, n_steps - 1) if is_parent else no_nodes(),
            self.grow_siblings(above, self.pass_on(label, before), n_steps - 1) if goes_on else no_nodes(),
        )
        return [OrderedTree(label, children), *siblings]


async def no_nodes() -> list[OrderedTree[int]]:
    """Return no nodes, in place of a subtree that does not grow."""
    return []


SPEC = ModelSpec(
    name="doubly-recurrent",
    summary="network that grows a tree from its root, given a text (Alvarez-Melis and Jaakkola 2017)",
    model=DoublyRecurrent,
    generators=tuple(DESCRIBED_TREES.generators),
    reads=DESCRIBED_TREES.reads,
    default_data="commands",
    load=load_described_trees,
    load_inputs=load_described_trees.inputs,
    count_correct=count_edges,
    predict=predict_trees,
    predictor="grow",
    given=lambda described: described.words,
)
