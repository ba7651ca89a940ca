"""Claim: recording the Tree-LSTM of the README costs at most 500 ns per node.

A node is a call of a cell. Beside it stands what Python takes anyway: the same recursion over the same trees, calling
empty functions where the recorded one calls cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.trace.record import Recorder
from harness import Findings, Settings, load_sst_or_listops, medians, name_of, run, take_turns

LIMIT_NS = 500


@dataclass(frozen=True)
class Config(Settings):
    """Trees are the first ones, in file order."""

    n_trees: int = 256
    dim: int = 64
    repeats: int = 101


class Bare:
    """The shape of `TreeLSTM.loss`, with nothing in it."""

    def leaf(self, word: int) -> Any:
        """Take what the cell takes."""

    def merge(self, left: Any, right: Any) -> Any:
        """Take what the cell takes."""

    def node_loss(self, state: Any, label: int) -> Any:
        """Take what the cell takes."""

    def loss(self, tree: Tree[int]) -> Any:
        """Visit all nodes as `TreeLSTM.loss` does."""
        losses = []

        def visit(t: Tree[int]) -> Any:
            state = self.leaf(t.word) if t.is_leaf else self.merge(visit(t.left), visit(t.right))
            losses.append(self.node_loss(state, t.label))
            return state

        visit(tree)
        return losses


def measure(config: Config) -> Findings:
    """Record a mini-batch again and again."""
    data = load_sst_or_listops(config.seed)
    trees: Sequence[Tree[int]] = data.train[: config.n_trees]
    model = TreeLSTM(dim=config.dim, rng=np.random.default_rng(config.seed), **data.sizes)
    recorder, loss, bare = Recorder(model.loss, model), ab.batched(model.loss), Bare()
    n_nodes = recorder.record(trees).n_nodes
    seconds = take_turns(
        {
            "bare recursion": lambda: [bare.loss(tree) for tree in trees],
            "recorded as one graph": lambda: recorder.record(trees),
            "record_all, a graph per tree": lambda: loss.record_all(trees),
        },
        config.repeats,
    )
    ns = {way: round(1e9 * median / n_nodes, 1) for way, median in medians(seconds).items()}
    rows = [(way, f"{figure:.0f}") for way, figure in ns.items()]
    title = f"{name_of(data)}, {len(trees)} trees, {n_nodes} nodes; limit {LIMIT_NS} ns per node\n\n"
    figures = {"data": name_of(data), "nodes": n_nodes, "ns_per_node": ns, "limit_ns": LIMIT_NS}
    return Findings(seconds, figures, title + format_table(("median of rounds", "ns per node"), rows))


if __name__ == "__main__":
    run(Config(), measure)
