"""Claim: agenda needs a third fewer batches than depth, and is still far from the lower bound.

Counted on the first trees of the data, in file order, in two forms of the same computation:

- *per tree*: the Tree-LSTM of the README: one cell for output and loss, a sum per tree;
- *one sum*: output and loss are two cells, and one sum takes the losses of the whole mini-batch; a graph made by hand.

Of types that agenda likes equally it takes the lowest id, so the order in which types are met can matter: counts for
all orders are listed too. Counts do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from autobatch import policies
from autobatch.cli.results import format_table
from autobatch.graph.build import make_graph
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.graph.rewrite.passes import rewrite
from autobatch.models.data.tree import Tree
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import min_batches
from autobatch.schedule.schedule_check import check_schedule
from autobatch.trace.record import Recorder
from harness import Findings, Settings, load_sst_or_listops, name_of, run

# Bound, depth and agenda for 32 trees of SST, counted by another program.
EXPECTED = {"per tree": (20, 49, 33), "one sum": (21, 55, 41)}


@dataclass(frozen=True)
class Config(Settings):
    """The first `n_trees` training trees."""

    n_trees: int = 32


def measure(config: Config) -> Findings:
    """Count batches in both forms."""
    data = load_sst_or_listops(config.seed)
    trees = data.train[: config.n_trees]
    model = TreeLSTM(dim=4, rng=np.random.default_rng(config.seed), **data.sizes)
    recorded, _ = rewrite(Recorder(model.loss, model).record(trees))
    figures, rows = {}, []
    for form, graph in {"per tree": recorded, "one sum": with_one_sum(trees)}.items():
        bound, (depth, agenda) = min_batches(graph), (count(graph, name) for name in ("depth", "agenda"))
        orders = sorted({count(reordered, "agenda") for reordered in all_type_orders(graph)})
        figures[form] = {"nodes": graph.n_nodes, "bound": bound, "depth": depth, "agenda": agenda, "any order": orders}
        expected = ", ".join(map(str, EXPECTED[form])) if is_counted_elsewhere(config, name_of(data)) else "-"
        rows.append((form, *map(str, (graph.n_nodes, bound, depth, agenda)), f"{orders[0]} to {orders[-1]}", expected))
    header = ("form", "nodes", "bound", "depth", "agenda", "agenda, any type order", "expected")
    title = f"{name_of(data)}, the first {len(trees)} trees; batches\n\n"
    return Findings({}, {"data": name_of(data), "counts": figures}, title + format_table(header, rows))


def is_counted_elsewhere(config: Config, data: str) -> bool:
    """Whether `EXPECTED` is about this mini-batch."""
    return config.n_trees == 32 and data == "sst"


def count(graph: Graph, policy: str) -> int:
    """The batches of a schedule that has been checked."""
    schedule = make_schedule(graph, policies.get(policy))
    check_schedule(graph, schedule)
    return schedule.n_batches


def all_type_orders(graph: Graph) -> Iterable[Graph]:
    """The same nodes and edges under every numbering of the types."""
    used = np.unique(graph.type_id)
    readers = np.repeat(np.arange(graph.n_nodes), np.diff(graph.edge_ptr))
    edges = list(zip(graph.edge_src.tolist(), readers.tolist(), strict=True))
    for order in permutations(range(used.size)):
        number = np.zeros(graph.n_types, np.int32)
        number[used] = order
        yield make_graph(NamedTypes(tuple(map(str, order))), number[graph.type_id].tolist(), edges)


def with_one_sum(trees: Sequence[Tree[int]]) -> Graph:
    """The graph of a mini-batch with nodes for leaf, merge, output and loss, and one sum in all."""
    types = NamedTypes(("leaf", "merge", "output", "loss", "sum"))
    leaf, merge, output, loss, total = range(5)
    type_id: list[int] = []
    edges: list[tuple[int, ...]] = []
    losses = []
    for tree in trees:
        states: list[int] = []
        for node in tree.postorder():
            state = len(type_id)
            if not node.is_leaf:
                right, left = states.pop(), states.pop()
                edges += [(left, state, 0, 0), (right, state, 0, 1)]
            states.append(state)
            type_id += [leaf if node.is_leaf else merge, output, loss]
            edges += [(state, state + 1), (state + 1, state + 2)]
            losses.append(state + 2)
    return make_graph(types, [*type_id, total], [*edges, *((k, len(type_id)) for k in losses)], [len(type_id)])


if __name__ == "__main__":
    run(Config(), measure)
