"""Test folding sums into their readers by its definition, read off the edges; results are unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.graph.build import make_graph, merge_graphs, split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.rewrite import DEFAULT, Rewrites, rewrite
from autobatch.models.data.dataset import load_lattices
from autobatch.models.lattice_tagger import LatticeLSTM
from autobatch.schedule.schedule import min_batches
from autobatch.trace.record import Recorder
from helpers.data.datasets import SMALL, real
from helpers.programs.graphs import ToyType, ToyTypes, chain, same_graph
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case

SEEDS = range(20)
UNFOLDED = tuple(name for name in DEFAULT if name != "fold")
TABLE = np.random.default_rng(0).standard_normal((5, 3))
PRIME = 2**31 - 1
GROWTH = 4  # at most so many new edges for each removed edge
TYPES = ToyTypes(
    (
        ToyType("word", n_ints=1),
        ToyType("pair", "p", n_outputs=2, n_floats=1),
        ToyType("join", "pp", n_ints=1),
        ToyType("many", "pv"),
        ToyType("sum", "v", passes={0: 0}, sum_type="sum"),
        ToyType("pair_sum", "vv", n_outputs=2, passes={0: 0, 1: 1}),
        ToyType("partly", "vv", n_outputs=2, n_ints=2, passes={0: 1}),
        ToyType("mixed", "pv", n_outputs=2, n_ints=2, passes={0: 1, 1: 0}),
    )
)
WORD, PAIR, JOIN, MANY, SUM, PAIR_SUM, PARTLY, MIXED = range(len(TYPES.types))
Edge = tuple[int, int, int]  # source, its output, the port that reads it


def edges_of(graph: Graph, node: int) -> list[Edge]:
    own = slice(graph.edge_ptr[node], graph.edge_ptr[node + 1])
    parts = (graph.edge_src[own].tolist(), graph.edge_out[own].tolist(), graph.edge_in[own].tolist())
    return list(zip(*parts, strict=True))


def draw_graph(seed: int) -> Graph:
    """Draw three instances with nodes of every type, which read near nodes, often repeatedly."""
    rng = np.random.default_rng(seed)
    return merge_graphs([draw_instance(rng, int(rng.integers(1, 40))) for _ in range(3)])


def draw_instance(rng: np.random.Generator, n_nodes: int) -> Graph:
    chances = [0.1, 0.2, 0.25, 0.05, 0.15, 0.1, 0.1, 0.05]
    kinds = [WORD, *rng.choice(len(TYPES.types), size=n_nodes - 1, p=chances).tolist()]
    edges: list[tuple[int, int, int, int]] = []
    for node in range(1, n_nodes):
        n_values = int(rng.choice([0, 1, 2, 3, 12], p=[0.05, 0.1, 0.4, 0.4, 0.05]))
        for port, letter in enumerate(TYPES.types[kinds[node]].ports):
            if port == 0 or rng.random() < 0.3:
                sources = node - np.minimum(node, rng.geometric(0.3, size=max(1, n_values)))
            n_read = n_values if letter == "v" else 1
            for source in np.repeat(sources[:n_read], 1 + (rng.random() < 0.1)):  # some ports read each value twice
                n_outputs = TYPES.types[kinds[source]].n_outputs
                output = port % n_outputs if letter == "p" or rng.random() < 0.8 else int(rng.integers(n_outputs))
                edges.append((int(source), node, output, port))
    return make_toys(kinds, edges, rng.integers(0, n_nodes, size=rng.integers(1, 3)).tolist())


def make_toys(kinds: Sequence[int], edges: Sequence[Sequence[int]], outputs: Sequence[int] = ()) -> Graph:
    """Make a graph whose attributes are distinct numbers."""
    n_ints, n_floats = (sum(getattr(TYPES.types[k], name) for k in kinds) for name in ("n_ints", "n_floats"))
    return make_graph(TYPES, kinds, edges, outputs, range(n_ints), np.arange(float(n_floats)).tolist())


def why_it_stays(graph: Graph, node: int) -> str:
    """Name the condition for folding that a node does not meet; return "" if it meets all."""
    toy = TYPES.types[graph.type_id[node]]
    read = [(n, *edge) for n in range(graph.n_nodes) for edge in edges_of(graph, n) if edge[0] == node]
    outputs = sorted({output for _, _, output, _ in read})
    if not read or "p" in toy.ports or any(o not in toy.passes for o in outputs):
        return "no sum"
    if node in graph.out_node:
        return "asked for"
    for reader, _, _, port in read:
        if TYPES.types[graph.type_id[reader]].ports[port] == "v":
            return "variadic reader"
        if sum(p == port for _, _, p in edges_of(graph, reader)) > 1:
            return "folded port"
    terms = {o: [edge[:2] for edge in edges_of(graph, node) if edge[2] == toy.passes[o]] for o in outputs}
    if any(len(values) < 2 for values in terms.values()):
        return "few terms"
    for values in terms.values():
        used = {(int(graph.type_id[source]), output) for source, output in values}
        if len(used) > len({kind for kind, _ in used}):
            return "two outputs of a type"
    if {source for source, _, _ in edges_of(graph, node)} - {s for values in terms.values() for s, _ in values}:
        return "a node without use"
    if sum(len(terms[o]) for _, _, o, _ in read) > GROWTH * (len(read) + len(edges_of(graph, node))):
        return "growth"
    return ""


def fold_by_hand(graph: Graph) -> tuple[list[int], list[list[Edge]], int]:
    """Return the remaining nodes, their edges, and the number of new edges."""
    goes = [why_it_stays(graph, node) == "" for node in range(graph.n_nodes)]
    kept = [node for node in range(graph.n_nodes) if not goes[node]]
    place = {node: k for k, node in enumerate(kept)}
    n_made = 0

    def terms(source: int, output: int, port: int) -> Iterator[Edge]:
        nonlocal n_made
        if goes[source]:
            for term, term_output, group in edges_of(graph, source):
                if group == TYPES.types[graph.type_id[source]].passes[output]:
                    n_made += 1
                    yield place[term], term_output, port
        else:
            yield place[source], output, port

    return kept, [[term for edge in edges_of(graph, node) for term in terms(*edge)] for node in kept], n_made


def values_of(graph: Graph) -> list[int]:
    """Compute each output exactly, modulo a prime; cells mix numbers and sums add them."""
    ints, floats = iter(graph.attr.tolist()), iter(graph.floats.tolist())
    values: dict[tuple[int, int], int] = {}
    for node, kind in enumerate(graph.type_id.tolist()):
        toy = TYPES.types[kind]
        data = [next(ints) for _ in range(toy.n_ints)] + [next(floats) for _ in range(toy.n_floats)]
        ports: list[list[int]] = [[] for _ in toy.ports]
        for source, output, port in edges_of(graph, node):
            ports[port].append(values[source, output])
        read = [sum(v) % PRIME if letter == "p" else v for v, letter in zip(ports, toy.ports, strict=True)]
        for output in range(toy.n_outputs):
            passed = read[toy.passes[output]] if output in toy.passes else None
            if passed is None:
                values[node, output] = hash((kind, output, *data, *(str(v) for v in read))) % PRIME
            else:
                values[node, output] = sum(passed) % PRIME if isinstance(passed, list) else passed
    return [values[int(n), int(o)] for n, o in zip(graph.out_node, graph.out_port, strict=True)]


@each("seed", SEEDS)
def test_the_sums_go_that_may_go(seed: int) -> None:
    graph = draw_graph(seed)
    before = graph.words.copy()
    result, done = rewrite(graph, ("fold",))
    assert np.array_equal(graph.words, before)
    check_graph(result)
    kept, edges, n_made = fold_by_hand(graph)
    assert done == Rewrites(folded=graph.n_nodes - len(kept), folded_edges=n_made)
    assert result.type_id.tolist() == graph.type_id[kept].tolist()
    assert [edges_of(result, node) for node in range(result.n_nodes)] == edges
    assert result.instance_ptr.tolist() == [sum(node < end for node in kept) for end in graph.instance_ptr]
    stays = np.isin(np.arange(graph.n_nodes), kept)
    for name, width in (("attr", TYPES.arrays().int_width), ("floats", TYPES.arrays().float_width)):
        assert np.array_equal(getattr(result, name), getattr(graph, name)[np.repeat(stays, width[graph.type_id])])
    assert values_of(result) == values_of(graph)
    again, nothing = rewrite(result, ("fold",))
    assert again is result
    assert nothing == Rewrites()


@pytest.mark.slow
def test_every_condition_decides_somewhere() -> None:
    graphs = [draw_graph(seed) for seed in range(120)]
    reasons = Counter(why_it_stays(graph, node) for graph in graphs for node in range(graph.n_nodes))
    expected = {
        "", "no sum", "asked for", "variadic reader", "folded port", "few terms", "two outputs of a type",
        "a node without use",
    }  # fmt: skip
    assert {reason for reason, n in reasons.items() if n >= 5} == expected


@each("seed", SEEDS)
def test_all_passes_together_change_no_value(seed: int) -> None:
    graph = draw_graph(seed)
    result, done = rewrite(graph, "all")
    check_graph(result)
    assert values_of(result) == values_of(graph)
    assert graph.n_nodes - result.n_nodes == done.dropped + done.dissolved + done.folded + done.shared
    reached = {source for node in range(result.n_nodes) for source, _, _ in edges_of(result, node)}
    assert reached | set(result.out_node.tolist()) == set(range(result.n_nodes))


def test_a_sum_goes_into_each_of_its_readers() -> None:
    r"""
    0   1   2
     \  |  /
        3         the sum
      / | \
     4  |  5.0    5 reads the sum by its port 0, and 4 by its port 1
      \_|__|.1
    """
    edges = [(0, 3), (1, 3), (2, 3), (3, 4), (3, 5), (4, 5, 1, 1)]
    result, done = rewrite(make_toys([WORD, WORD, WORD, SUM, PAIR, JOIN], edges, [5]), ("fold",))
    assert done == Rewrites(folded=1, folded_edges=6)
    assert str(result).splitlines()[5:] == ["  3 = pair(0 + 1 + 2)", "  4 = join(0 + 1 + 2, 3.1) of [3]"]


def test_a_sum_of_pairs_goes_when_one_half_is_read() -> None:
    edges = [(0, 1), (0, 2), *((s, 3, o, o) for o in (0, 1) for s in (1, 2)), (3, 4)]
    result, done = rewrite(make_toys([WORD, PAIR, PAIR, PAIR_SUM, PAIR], edges, [4]), ("fold",))
    assert done == Rewrites(folded=1, folded_edges=2)
    assert edges_of(result, 3) == [(1, 0, 0), (2, 0, 0)]


REFUSED: dict[str, tuple[list[int], list[tuple[int, ...]], list[int]]] = {
    "asked for": ([WORD, WORD, SUM, PAIR], [(0, 2), (1, 2), (2, 3)], [2, 3]),
    "nothing reads it": ([WORD, WORD, SUM], [(0, 2), (1, 2)], [0]),
    "read by another sum, too": (
        [WORD, WORD, SUM, PAIR, SUM], [(0, 2), (1, 2), (2, 3), (2, 4), (3, 4)], [4, 3],
    ),
    "one of two values of a port": (
        [WORD, WORD, SUM, SUM, PAIR], [(0, 2), (1, 2), (0, 3), (2, 3), (3, 4)], [4, 3],
    ),
    "a sum of nothing": ([SUM, PAIR], [(0, 1)], [1]),
    "a sum of one value": ([WORD, SUM, PAIR], [(0, 1), (1, 2)], [2]),
    "two outputs of one type": ([WORD, PAIR, PAIR, SUM, PAIR], [(0, 1), (0, 2), (1, 3), (2, 3, 1), (3, 4)], [4]),
    "not only its sum is read": (
        [WORD, WORD, PARTLY, JOIN], [(0, 2, 0, 1), (1, 2, 0, 1), (2, 3, 0), (2, 3, 1, 1)], [3],
    ),
    "what else it reads would have no use": (
        [WORD, WORD, WORD, PARTLY, PAIR], [(2, 3), (0, 3, 0, 1), (1, 3, 0, 1), (3, 4)], [4],
    ),
    "it reads by a plain port, too": (
        [WORD, WORD, MIXED, PAIR], [(0, 2), (0, 2, 0, 1), (1, 2, 0, 1), (2, 3)], [3],
    ),
}  # fmt: skip


@each("name", REFUSED)
def test_a_sum_stays(name: str) -> None:
    graph = make_toys(*REFUSED[name])
    assert rewrite(graph, ("fold",))[0] is graph


def test_a_sum_in_a_folded_port_stays() -> None:
    """The port reads 2 and 0. Folding 2 as well would lead to 0, 1 and 0, and so on."""
    graph = make_toys([WORD, WORD, SUM, PAIR], [(0, 2), (1, 2), (2, 3), (0, 3)], [3])
    assert str(graph).splitlines()[-1] == "  3 = pair(2 + 0)"
    assert rewrite(graph, ("fold",))[0] is graph


def test_a_kept_sum_may_be_a_term() -> None:
    """3 is read by the sum 4 and by 5. Only 4 folds."""
    edges = [(0, 3), (1, 3), (3, 4), (2, 4), (3, 5), (4, 5, 0, 1)]
    result, done = rewrite(make_toys([WORD, WORD, WORD, SUM, SUM, JOIN], edges, [5]), ("fold",))
    assert done == Rewrites(folded=1, folded_edges=2)
    assert edges_of(result, 4) == [(3, 0, 0), (3, 0, 1), (2, 0, 1)]


@pytest.mark.parametrize(("n_terms", "most_readers"), [(4, 200), (8, 8), (200, 4)])
def test_edges_grow_so_far(n_terms: int, most_readers: int) -> None:
    for n_readers, folded in ((most_readers, 1), (most_readers + 1, int(n_terms == 4))):
        kinds = [WORD] * n_terms + [SUM] + [PAIR] * n_readers
        edges = [(s, n_terms) for s in range(n_terms)] + [(n_terms, n_terms + 1 + r) for r in range(n_readers)]
        _, done = rewrite(make_toys(kinds, edges), ("fold",))
        assert done == Rewrites(folded=folded, folded_edges=folded * n_terms * n_readers)


def test_equal_readers_of_equal_terms_are_shared() -> None:
    """0 + 1 is read by 5 and 6, and 0 + 0 by 7. One of the three is shared."""
    kinds = [WORD, WORD, SUM, SUM, SUM, PAIR, PAIR, PAIR]
    edges = [(0, 2), (1, 2), (0, 3), (1, 3), (0, 4), (0, 4), (2, 5), (3, 6), (4, 7)]
    graph = make_graph(TYPES, kinds, edges, [5, 6, 7], [1, 2], [0.5] * 3)
    result, done = rewrite(graph, ("fold", "share"))
    assert done == Rewrites(folded=3, folded_edges=6, shared=1)
    assert result.out_node.tolist() == [2, 2, 3]
    assert str(result).splitlines()[-2:] == ["  2 = pair(0 + 1)", "  3 = pair(0 + 0)"]


def test_folded_graphs_merge_and_split() -> None:
    folded = [rewrite(draw_graph(seed), ("fold",))[0] for seed in range(5)]
    merged = merge_graphs(folded)
    check_graph(merged)
    parts = split_graph(merged)
    assert len(parts) == 15
    assert same_graph(merge_graphs(parts), merged)


def test_types_without_sums_give_the_same_graph() -> None:
    graph = chain("a", "b", "a")
    assert rewrite(graph, ("fold",))[0] is graph
    empty = merge_graphs([], TYPES)
    assert rewrite(empty, ("fold",))[0] is empty


@pytest.mark.parametrize(
    ("folder", "folded_edges", "size", "batches"),
    [(SMALL, (207, 1742), (1322, 2926), (53, 38)), real((760, 6772), (4702, 10900), (211, 152))],
)
def test_lattices_need_a_third_fewer_batches(
    folder: Path, folded_edges: tuple[int, int], size: tuple[int, int], batches: tuple[int, int]
) -> None:
    """Here the first state is two parameters, so there are two more batches than without it."""
    data = load_lattices(str(folder / "lattice"), np.random.default_rng(0))
    model = LatticeLSTM(dim=2, rng=np.random.default_rng(0), **data.sizes)
    recorded = Recorder(model.loss, model).record(data.train[:32])
    kept, _ = rewrite(recorded, UNFOLDED)
    folded, done = rewrite(kept, ("fold",))
    assert done == Rewrites(folded=folded_edges[0], folded_edges=folded_edges[1])
    assert (kept.n_nodes, kept.n_edges) == size
    assert (min_batches(kept), min_batches(folded)) == batches


@pytest.mark.cases(1)
@pytest.mark.usefixtures("_checked")
@each("policy", ["unbatched", "depth", "agenda"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_folding_changes_no_result_and_no_gradient(case: Case, policy: str) -> None:
    model, instances = case.draw(seed=5, n_instances=12, dim=4)
    kept, folded = (
        ab.batched(model.loss, policy=policy, rewrites=rewrites, backend=Reference(poison=True))
        for rewrites in (UNFOLDED, DEFAULT)
    )
    weights = np.random.default_rng(0).standard_normal(len(instances)).tolist()
    value, grads = kept.value_and_grad(instances, reduce=weights)
    folded_value, folded_grads = folded.value_and_grad(instances, reduce=weights)
    assert folded_value == pytest.approx(value, rel=1e-12)
    for name, gradient in grads.items():
        np.testing.assert_allclose(np.asarray(folded_grads[name]), np.asarray(gradient), rtol=0, atol=1e-11)
    assert kept.last is not None
    assert folded.last is not None
    assert (folded.last.nodes < kept.last.nodes) == (case.name == "lattice-lstm")


@ab.cell
def halves(x: int) -> Any:
    both = ab.lookup(TABLE, x)
    return both, 2.0 * both


@ab.cell
def difference(first: Any, second: Any) -> Any:
    return first - 3.0 * second


def test_values_that_are_terms_twice_and_of_several_sums() -> None:
    """Sums of both outputs, of one value three times, and of a returned sum, compared with plain Python."""

    def program(words: list[int]) -> Any:
        pairs = [halves(word) for word in words]
        both = ab.sum_n([first for first, _ in pairs])
        again = ab.sum_n([both, pairs[0][0], pairs[0][0], both])
        seconds = ab.sum_n([second for _, second in pairs] * 2)
        mixed = ab.sum_n([pairs[0][0], pairs[-1][1]])
        return both, difference(again, seconds), difference(seconds, again), difference(mixed, seconds)

    run = ab.batched(program, backend=Reference(poison=True))
    instances = [[1, 2, 3], [4, 0], [2, 2, 2, 2]]
    found = run(instances)
    folded = run.explain(instances).rewrites.folded
    assert folded == 6  # two per instance: `mixed` adds two outputs of one type, and `both` is returned
    for k, words in enumerate(instances):
        for batched, plain in zip(found, program(words), strict=True):
            np.testing.assert_allclose(batched[k], plain, rtol=1e-6)
