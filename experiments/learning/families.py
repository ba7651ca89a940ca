"""Generate families of graphs for learning policies that work on unseen graphs.

Each call draws a workload, such as a grammar, and then a mini-batch of instances of it, as one `Dag`. Everything that a
rule could memorize varies from call to call: the number of types, their frequencies, which type follows which, the
sizes of instances, and the numbering of types. No family is modelled on lattices or two-type trees, on which rules are
tested, but a grammar may by chance derive trees with two kinds of inner nodes. A draw has 10 to 4,000 nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag
from autobatch.graph.sketch import Sketch

MAX_INSTANCES = 32
MIN_NODES, MAX_NODES = 5, 40  # of an instance, without the nodes that read its states
MAX_HEADS = 2  # an output and its loss


def draw(name: str, rng: np.random.Generator) -> Dag:
    """Draw a mini-batch of the family called `name`, its types numbered in random order.

    Raises:
        PolicyError: the family is unknown; the message lists the known ones.

    Cost: a few microseconds per node, in Python.

    >>> dag = draw("trees", np.random.default_rng(0))
    >>> dag.type_id.size, dag.n_types
    (30, 4)
    """
    if name not in FAMILIES:
        raise PolicyError(f"drawing graphs: family {name!r} is not known; the families are {', '.join(FAMILIES)}.")
    dag = FAMILIES[name](rng)
    return dag._replace(type_id=rng.permutation(dag.n_types).astype(np.int32)[dag.type_id])


def draw_graphs(n_graphs: int, seed: int | Sequence[int]) -> list[Dag]:
    """Draw mini-batches of all families in turn.

    >>> [dag.n_types for dag in draw_graphs(4, seed=0)]
    [7, 5, 4, 2]
    """
    rng = np.random.default_rng(seed)
    names = list(FAMILIES)
    return [draw(names[i % len(names)], rng) for i in range(n_graphs)]


def draw_random_dags(rng: np.random.Generator) -> Dag:
    """Draw random graphs with 2 to 8 types, whose nodes read up to 3 earlier nodes, near or far."""
    sketch = Sketch(int(rng.integers(2, 8, endpoint=True)))
    shares = _draw_shares(rng, sketch.n_types)
    max_inputs = int(rng.integers(1, 3, endpoint=True))
    nearness = rng.uniform(0.1, 0.6)
    for n_nodes in _draw_sizes(rng):
        kinds = rng.choice(sketch.n_types, n_nodes, p=shares).tolist()
        n_inputs = rng.integers(1, max_inputs, n_nodes, endpoint=True).tolist()
        first = len(sketch.inputs)
        for place, kind in enumerate(kinds):
            steps_back = rng.geometric(nearness, n_inputs[place]).tolist()
            sketch.add(kind, sorted({first + place - back for back in steps_back if back <= place}))
    return sketch.to_dag()


def draw_grammars(rng: np.random.Generator) -> Dag:
    """Draw derivations of a random grammar of 3 to 6 kinds: a kind has 1 to 3 children, with its own preferences for
    kinds.

    Nodes of kind 0 have no children. With an output and a loss there are up to 8 types.
    """
    n_kinds = int(rng.integers(3, 6, endpoint=True))
    n_children = [0, *rng.integers(1, 3, n_kinds - 1, endpoint=True).tolist()]
    below = [_draw_shares(rng, n_kinds - 1) for _ in range(n_kinds)]  # row 0 is for roots
    sketch, read_states = _draw_heads(rng, n_kinds)

    def derive(parent: int, n_nodes: int) -> int:
        kind = 1 + int(rng.choice(n_kinds - 1, p=below[parent])) if n_nodes > 1 else 0
        return sketch.add(kind, [derive(kind, size) for size in _split(rng, n_nodes - 1, n_children[kind])])

    for n_nodes in _draw_sizes(rng):
        first = len(sketch.inputs)
        derive(0, n_nodes)
        read_states(range(first, len(sketch.inputs)))
    return sketch.to_dag()


def draw_chains(rng: np.random.Generator) -> Dag:
    """Draw chains of steps of 2 to 6 kinds, where the kind of a step depends on the one before."""
    n_kinds = int(rng.integers(2, 6, endpoint=True))
    after = [_draw_shares(rng, n_kinds) for _ in range(n_kinds)]
    sketch, read_states = _draw_heads(rng, n_kinds)
    for n_steps in _draw_sizes(rng):
        kind = int(rng.integers(n_kinds))
        states = [sketch.add(kind)]
        for _ in range(n_steps - 1):
            kind = int(rng.choice(n_kinds, p=after[kind]))
            states.append(sketch.add(kind, states[-1:]))
        read_states(states)
    return sketch.to_dag()


def draw_trees(rng: np.random.Generator) -> Dag:
    """Draw binary trees of leaves and inner nodes, from balanced ones to chains."""
    sketch, read_states = _draw_heads(rng, 2)
    skew = 2.0 ** rng.uniform(-5, 2)  # how a node's leaves are split; below 1 most go to one child

    def grow(n_leaves: int) -> int:
        if n_leaves == 1:
            return sketch.add(0)
        left = 1 + round(rng.beta(skew, skew) * (n_leaves - 2))
        return sketch.add(1, [grow(left), grow(n_leaves - left)])

    for n_nodes in _draw_sizes(rng):
        first = len(sketch.inputs)
        grow((n_nodes + 1) // 2)
        read_states(range(first, len(sketch.inputs)))
    return sketch.to_dag()


FAMILIES: Mapping[str, Callable[[np.random.Generator], Dag]] = {
    "random-dags": draw_random_dags,
    "grammars": draw_grammars,
    "chains": draw_chains,
    "trees": draw_trees,
}
"""The families that `draw` knows, with types in their original numbering."""


def _draw_sizes(rng: np.random.Generator) -> list[int]:
    """Draw the sizes of the instances of a mini-batch; small and large mini-batches are equally likely."""
    n_instances = round(2 ** rng.uniform(1, np.log2(MAX_INSTANCES)))
    sizes: list[int] = rng.integers(MIN_NODES, rng.integers(MIN_NODES, MAX_NODES), n_instances, endpoint=True).tolist()
    return sizes


def _draw_shares(rng: np.random.Generator, n_kinds: int) -> NDArray[np.float64]:
    """Draw the probabilities of kinds, from about equal to dominated by one kind."""
    return rng.dirichlet(np.full(n_kinds, 2.0 ** rng.uniform(-1, 3)))


def _draw_heads(rng: np.random.Generator, n_kinds: int) -> tuple[Sketch, Callable[[Iterable[int]], None]]:
    """Draw whether states have an output, and whether it has a loss. Return a sketch, and a function that adds them."""
    n_heads = int(rng.integers(MAX_HEADS, endpoint=True))
    sketch = Sketch(n_kinds + n_heads)

    def read_states(states: Iterable[int]) -> None:
        for state in states:
            for head in range(n_kinds, sketch.n_types):
                state = sketch.add(head, [state])

    return sketch, read_states


def _split(rng: np.random.Generator, n_nodes: int, n_parts: int) -> list[int]:
    """Split nodes into `n_parts` non-empty parts, or fewer if there are fewer nodes."""
    n_parts = min(n_parts, n_nodes)
    if n_parts == 0:
        return []
    cuts = np.sort(rng.choice(n_nodes - 1, n_parts - 1, replace=False)) + 1
    sizes: list[int] = np.diff(cuts, prepend=0, append=n_nodes).tolist()
    return sizes
