"""Network that grows a tree from its root, one instance at a time.

What a node is depends on two states: the ancestral one has read the labels above the node, the fraternal one those of
the siblings before it. It learns from right trees; by its own it awaits at every node the likeliest label, whether
there are children, and whether there is another sibling. Subtrees grow side by side.

Source: Alvarez-Melis and Jaakkola 2017, Tree-structured decoding with doubly-recurrent neural networks (ICLR),
section 3, told what to grow by an LSTM that reads a text, as in their section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.models.data.dataset import TOLD, load_told
from autobatch.models.data.ordered_tree import OrderedTree, Told
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_common
from autobatch.models.spec import Counts, ModelSpec


class DoublyRecurrent(ab.Module):
    """Embeddings of words and labels, three LSTMs, and layers that decide at each node.

    Args:
        n_words: word ids of texts are 0 to n_words - 1.
        n_labels: C, labels of nodes are 0 to C - 1.
        dim: H, width of embeddings and states.
        rng: draws the initial parameters.
        max_steps: from the root to a node that is grown, down or aside; so trees end, with less than 2^max_steps nodes.
    """

    def __init__(self, n_words: int, n_labels: int, dim: int, rng: np.random.Generator, max_steps: int = 10) -> None:
        self.words = ab.Parameter(0.1 * rng.standard_normal((n_words, dim)))
        self.labels = ab.Parameter(0.1 * rng.standard_normal((n_labels, dim)))
        self.encoder = ab.LSTMCell(dim, dim, rng=rng)
        self.ancestral = ab.LSTMCell(dim, dim, rng=rng)
        self.fraternal = ab.LSTMCell(dim, dim, rng=rng)
        self.join = ab.Linear(2 * dim, dim, rng=rng, bias=False)
        self.topology = ab.Linear(dim, 2, rng=rng)
        self.output = ab.Linear(dim, n_labels, rng=rng)
        self.parent_scores = ab.Parameter(0.1 * rng.standard_normal(n_labels))
        self.sibling_scores = ab.Parameter(0.1 * rng.standard_normal(n_labels))
        self.first = np.zeros(dim), np.zeros(dim)
        self.max_steps = max_steps

    @ab.cell
    def read(self, word: int, state: Any) -> Any:
        """Read a word of the text in a state, h (H,) and c (H,): the next state."""
        return self.encoder(ab.lookup(self.words, word), state)

    @ab.cell
    def descend(self, label: int, state: Any) -> Any:
        """Read the label of a node: the ancestral state of its children."""
        return self.ancestral(ab.lookup(self.labels, label), state)

    @ab.cell
    def pass_on(self, label: int, state: Any) -> Any:
        """Read the label of a node: the fraternal state of the next sibling."""
        return self.fraternal(ab.lookup(self.labels, label), state)

    @ab.cell
    def node_loss(self, above: Any, before: Any, label: int, is_parent: int, goes_on: int) -> Any:
        """Compare a node with its label, and with whether it has children and a next sibling, 1 or 0: a scalar."""
        hidden = self.hidden(above, before)
        topology = self.topology(hidden)
        wrong = ab.sum(ab.softplus(topology)) - is_parent * topology[0] - goes_on * topology[1]
        return wrong + ab.cross_entropy(self.scores(hidden, is_parent, goes_on), label)

    @ab.cell
    def decide(self, above: Any, before: Any) -> Any:
        """Decide on a node: its label, an int, and whether it has children and a next sibling, 1 or 0."""
        hidden = self.hidden(above, before)
        topology = self.topology(hidden)
        is_parent, goes_on = topology[0] > 0.0, topology[1] > 0.0
        return ab.argmax(self.scores(hidden, is_parent, goes_on)), is_parent, goes_on

    def scores(self, hidden: Any, is_parent: Any, goes_on: Any) -> Any:
        """Score the labels of a node, inside a cell: logits (C,)."""
        return self.output(hidden) + is_parent * self.parent_scores + goes_on * self.sibling_scores

    def hidden(self, above: Any, before: Any) -> Any:
        """Join the ancestral and the fraternal state of a node, inside a cell: (H,)."""
        return ab.tanh(self.join(ab.concat((above[0], before[0]))))

    def encode(self, words: Sequence[int]) -> Any:
        """Read a text: the ancestral state of the root."""
        state: Any = self.first
        for word in words:
            state = self.read(word, state)
        return state

    def loss(self, told: Told[int]) -> Any:
        """Sum the losses of all nodes of a tree: a scalar."""
        losses = []

        def visit(siblings: Sequence[OrderedTree[int]], above: Any) -> None:
            before: Any = self.first
            for place, node in enumerate(siblings, start=1):
                is_parent, goes_on = bool(node.children), place < len(siblings)
                losses.append(self.node_loss(above, before, node.label, int(is_parent), int(goes_on)))
                if is_parent:
                    visit(node.children, self.descend(node.label, above))
                if goes_on:
                    before = self.pass_on(node.label, before)

        visit([told.tree], self.encode(told.words))
        return ab.sum_n(losses)

    async def grow(self, words: Sequence[int]) -> OrderedTree[int]:
        """Grow the tree that a text tells of."""
        root, *_ = await self.grow_siblings(self.encode(words), self.first, self.max_steps)
        return root

    async def grow_siblings(self, above: Any, before: Any, n_steps: int) -> list[OrderedTree[int]]:
        """Grow a node and the siblings that follow, and what is below them, as far as `n_steps` steps reach."""
        label, *decided = (int(x) for x in await ab.value(self.decide(above, before)))
        is_parent, goes_on = decided if n_steps > 1 else (False, False)
        children, siblings = await ab.gather(
            self.grow_siblings(self.descend(label, above), self.first, n_steps - 1) if is_parent else nobody(),
            self.grow_siblings(above, self.pass_on(label, before), n_steps - 1) if goes_on else nobody(),
        )
        return [OrderedTree(label, children), *siblings]


async def nobody() -> list[OrderedTree[int]]:
    """Grow no node."""
    return []


def edges_of(tree: OrderedTree[int]) -> list[tuple[int, int]]:
    """List the edges of a tree: the labels of a node and of its child.

    >>> edges_of(OrderedTree(1, [OrderedTree(2), OrderedTree(2)]))
    [(1, 2), (1, 2)]
    """
    return [(node.label, child.label) for node in tree.preorder() for child in node.children]


def count_correct(
    outputs: Sequence[OrderedTree[int]], told: Sequence[Told[int]], vocabularies: Mapping[str, Vocabulary]
) -> Counts:
    """Count for F1, which is their ratio, twice the right edges and all meant and grown; and right and all trees.

    Args:
        outputs: of batched `DoublyRecurrent.grow`: a tree per text.
        told: one per output.
        vocabularies: not used.
    """
    grown, meant = [edges_of(tree) for tree in outputs], [edges_of(one.tree) for one in told]
    right = sum(tree == one.tree for tree, one in zip(outputs, told, strict=True))
    return {"edge_f1": count_common(grown, meant), "exact": (right, len(told))}


def predict(
    outputs: Sequence[OrderedTree[int]], told: Sequence[Told[int]], vocabularies: Mapping[str, Vocabulary]
) -> list[dict[str, Any]]:
    """Write the tree of each text, {"tree": "(turn left)"}."""
    return [{"tree": repr(tree.map(vocabularies["labels"].word))} for tree in outputs]


SPEC = ModelSpec(
    name="doubly-recurrent",
    summary="network that grows a tree from its root, told by a text (Alvarez-Melis and Jaakkola 2017)",
    model=DoublyRecurrent,
    generators=tuple(TOLD.generators),
    reads=TOLD.reads,
    default_data="commands",
    load=load_told,
    count_correct=count_correct,
    predict=predict,
    predictor="grow",
    given=lambda told: told.words,
)
