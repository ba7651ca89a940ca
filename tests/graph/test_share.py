"""Test the sharing of equal nodes against a dictionary of their computations; results and gradients are unchanged."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.backends.reference import Reference
from autobatch.graph.build import make_graph, merge_graphs, split_graph
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.rewrite import DEFAULT, UNSHARED, Rewrites, Shared, explain_sharing, rewrite
from helpers.counters.counting import files_entered
from helpers.programs.graphs import CELL, IDENTITY, SUM_N, SWAP, TOYS, WORD, ToyTypes, chain, random_toys
from helpers.runs.recorded import types_of_nodes
from helpers.runs.ways import each
from helpers.twins.cases import CASES, Case

SEEDS = range(20)
TO_UNSHARED = 1e-12
RANDOM_TOYS = ToyTypes(tuple(replace(kind, random=kind.name in ("cell", "identity")) for kind in TOYS.types))
SPECIAL = np.array([0.0, -0.0, np.nan, -np.nan, 1.0, -1.0])
"""Bits are compared: the zeros differ, and a NaN equals itself."""

HEAD, LOOK_UP, WORD_COST, NODE, WRITE = 4, 2048, 64, 8192, 1024  # docs/decisions/sharing-by-rule.md
SHARE, CREDIT, SMALL = 128, 128, 1024

pytestmark = pytest.mark.usefixtures("_checked")


def draw_batch(seed: int, n_nodes: int | None = None, types: ToyTypes = TOYS) -> Graph:
    """Draw four toy instances, two of them equal, with few and special float attributes."""
    rng = np.random.default_rng(seed)
    drawn = [random_toys(1000 * seed + k, n_nodes) for k in range(3)]
    merged = merge_graphs([drawn[0], drawn[1], drawn[0], drawn[2]])
    floats = rng.choice(SPECIAL[: rng.integers(1, 7)], merged.floats.size)
    return Graph(merged.words, floats, types, merged.structures, np.array([7, 3, 5, 2]))


def first_equals(graph: Graph, types: ToyTypes) -> list[int]:
    """Return for each node the first equal one, by definition: nodes with equal parts are equal."""
    known: dict[Any, int] = {}
    first: list[int] = []
    ints, floats = iter(graph.attr.tolist()), iter(graph.floats)
    for node, number in enumerate(graph.type_id.tolist()):
        kind = types.types[number]
        edges = range(graph.edge_ptr[node], graph.edge_ptr[node + 1])
        computation = (
            number,
            tuple((first[graph.edge_src[e]], int(graph.edge_out[e]), int(graph.edge_in[e])) for e in edges),
            tuple(next(ints) for _ in range(kind.n_ints)),
            tuple(next(floats).tobytes() for _ in range(kind.n_floats)),
        )
        first.append(node if kind.random else known.setdefault(computation, node))
    return first


def first_by_rule(graph: Graph, types: ToyTypes) -> list[int]:
    """Return for each node the one that stays by the rule, in steps: lookups, gains of types, and readers."""
    equal, kinds = first_equals(graph, types), graph.type_id.tolist()
    gain, found, looked_up = Counter[int](), Counter[int](), set[int]()
    reads = [graph.edge_src[slice(*graph.edge_ptr[node : node + 2])].tolist() for node in range(graph.n_nodes)]
    least = CREDIT * max(graph.n_nodes, SMALL)
    for node, number in enumerate(kinds):
        kind = types.types[number]
        credit = max(kinds.count(number) * (NODE + kind.work) // SHARE, least)
        is_open = not kind.random and gain[number] > -credit
        if is_open and (not reads[node] or kind.work) and looked_up.issuperset(reads[node]):
            n_words = HEAD + 3 * len(reads[node]) + kind.n_ints + 2 * kind.n_floats
            cost = LOOK_UP + WORD_COST * n_words
            is_found = equal[node] in looked_up
            found[number] += is_found
            gain[number] += is_found * (NODE + kind.work if kind.work else 2 * cost) - cost
            looked_up.add(node)
    chosen = {number for number, kind in enumerate(types.types) if kind.work and gain[number] > 0}
    saved = sum(found[number] * (NODE + types.types[number].work) for number in chosen)
    if saved < WRITE * graph.n_nodes:
        return list(range(graph.n_nodes))
    goes = {node for node in looked_up if equal[node] != node and equal[node] in looked_up}
    for node in sorted(goes, reverse=True):
        if kinds[node] in chosen:
            chosen |= {kinds[source] for source in reads[node]}
    return [equal[node] if node in goes and kinds[node] in chosen else node for node in range(graph.n_nodes)]


def check_shared(graph: Graph, result: Graph, types: ToyTypes, first: list[int] | None = None) -> int:
    """Check the result node by node; return the number of removed nodes."""
    first = first_equals(graph, types) if first is None else first
    kept = sorted(set(first))
    place = {node: kept.index(first[node]) for node in range(graph.n_nodes)}
    n_ints, n_floats = types.arrays().int_width[graph.type_id], types.arrays().float_width[graph.type_id]
    check_graph(result)
    assert result.type_id.tolist() == graph.type_id[kept].tolist()
    assert result.instance_ptr.tolist() == [sum(k < end for k in kept) for end in graph.instance_ptr]
    for new, node in enumerate(kept):
        own, read = (slice(*g.edge_ptr[n : n + 2]) for g, n in ((result, new), (graph, node)))
        assert result.edge_src[own].tolist() == [place[source] for source in graph.edge_src[read]]
        assert result.edge_out[own].tolist() == graph.edge_out[read].tolist()
        assert result.edge_in[own].tolist() == graph.edge_in[read].tolist()
    stays = np.isin(np.arange(graph.n_nodes), kept)
    assert result.attr.tolist() == graph.attr[np.repeat(stays, n_ints)].tolist()
    assert result.floats.tobytes() == graph.floats[np.repeat(stays, n_floats)].tobytes()
    assert result.out_node.tolist() == [place[node] for node in graph.out_node]
    for name in ("out_port", "out_slot", "output_ptr"):
        assert getattr(result, name).tolist() == getattr(graph, name).tolist()
    assert (result.keys.tolist(), result.structures) == (graph.keys.tolist(), graph.structures)
    return graph.n_nodes - len(kept)


@each("types", [TOYS, RANDOM_TOYS])
@each("seed", SEEDS)
def test_the_first_of_equal_nodes_stays(seed: int, types: ToyTypes) -> None:
    graph = draw_batch(seed, types=types)
    before = graph.words.copy()
    result, done = rewrite(graph, ("share",))
    assert graph.words.tolist() == before.tolist()
    assert done == Rewrites(shared=check_shared(graph, result, types))
    assert done.shared > 0
    assert rewrite(result, ("share",))[0] is result


@each("seed", SEEDS)
def test_all_passes_share_what_the_others_leave(seed: int) -> None:
    graph = draw_batch(seed)
    others, done = rewrite(graph, UNSHARED)
    result, all_done = rewrite(graph, "all")
    assert all_done == replace(done, shared=check_shared(others, result, TOYS))


@each("seed", SEEDS)
@each("work", [1, 3000, 40_000])
def test_the_rule_is_what_it_says(seed: int, work: int) -> None:
    """Half of the types multiply matrices, and many instances occur twice."""
    rng = np.random.default_rng(seed)
    kinds = [replace(kind, work=work * int(rng.integers(2)), random=rng.random() < 0.1) for kind in TOYS.types]
    types = ToyTypes(tuple(kinds))
    drawn = [random_toys(1000 * seed + k, 60) for k in range(12)]
    merged = merge_graphs([drawn[k] for k in rng.integers(12, size=20)])
    graph = Graph(merged.words, rng.choice(SPECIAL, merged.floats.size), types, merged.structures, merged.keys)
    first, n_multiplying = first_by_rule(graph, types), types.arrays().product_work[graph.type_id].astype(bool).sum()
    result, done = rewrite(graph, ("share_products",))
    assert done.shared == check_shared(graph, result, types, first if n_multiplying >= 32 else [*range(graph.n_nodes)])
    told = explain_sharing(graph, ("share_products",))
    assert sum(found.equal for found in told if found.is_shared) == done.shared


def test_the_rule_shares_on_both_sides_of_its_bounds() -> None:
    """The test above would also pass if nothing or everything were shared."""
    leaf = replace(TOYS.types[WORD], work=12_000)
    for n_words, shares in ((2, True), (90, False)):
        graph = make_graph(ToyTypes((leaf,)), [0] * 100, [], range(100), attr=[k % n_words for k in range(100)])
        result, done = rewrite(graph)
        assert done.shared == (98 if shares else 0)
        [found] = explain_sharing(graph, "auto")
        assert found == Shared(0, 100, 100 if shares else 56, 98 if shares else 0, shares)
        assert (result is graph) is not shares
        assert rewrite(graph, "all")[1].shared == 100 - n_words


def test_few_nodes_are_not_looked_at() -> None:
    leaf = replace(TOYS.types[WORD], work=10**6)
    graph = make_graph(ToyTypes((leaf,)), [0] * 31, [], range(31), attr=[1] * 31)
    assert rewrite(graph)[0] is graph
    assert explain_sharing(graph, "auto") == explain_sharing(graph, UNSHARED) == []
    assert [found.equal for found in explain_sharing(graph, "all")] == [30]


def mixed(h: int, word: int) -> int:
    """Compute the hash of the native core, `native/graph/rewrite/share.cpp`."""
    h = ((h ^ word) * 0x9E3779B1) & 0xFFFFFFFF
    return h ^ (h >> 15)


def test_equal_hashes_are_not_enough() -> None:
    """All nodes of two ints have the same hash, so each is compared with every earlier kind of node."""
    types = ToyTypes((replace(TOYS.types[WORD], n_ints=2, ranges={}),))
    begun = mixed(0, 0)
    pairs = [(k, mixed(begun, k) ^ mixed(begun, 0)) for k in range(200)] * 2
    assert len({mixed(mixed(begun, first), second) for first, second in pairs}) == 1
    attr = np.array(pairs, np.uint32).view(np.int32).ravel().tolist()
    graph = make_graph(types, [0] * 400, [], range(400), attr=attr)
    result, done = rewrite(graph, ("share",))
    assert done.shared == check_shared(graph, result, types) == 200


def test_equal_parents_of_equal_nodes_are_shared() -> None:
    r"""
    0  1     4  5      words 3 4 and 3 4, in two instances
     \ |     | /
      2 swap 6
      |      |
      3      7 -> *    each instance returns its last node
    """
    edges = [(0, 2), (1, 2, 0, 1), (2, 3, 2)]
    one = make_graph(TOYS, [WORD, WORD, SWAP, SUM_N], edges, [3], attr=[3, 4])
    result, done = rewrite(merge_graphs([one, one]), ("share",))
    assert done == Rewrites(shared=4)
    assert result.instance_ptr.tolist() == [0, 4, 4]
    assert result.out_node.tolist() == [3, 3]
    with pytest.raises(ab.GraphError, match="used by several instances"):
        split_graph(result)


@pytest.mark.parametrize(
    "edges",
    [
        [(0, 2, 0, 0), (1, 2, 0, 1), (1, 3, 0, 0), (0, 3, 0, 1)],
        [(0, 2, 0, 0), (1, 2, 0, 1), (0, 3, 0, 0), (1, 3, 0, 0)],
        [(0, 2, 0, 0), (1, 2, 0, 1), (0, 3, 0, 0), (1, 3, 1, 1)],
        [(0, 2, 0, 0), (1, 2, 0, 1), (0, 3, 0, 0)],
        [(0, 2, 256, 0), (0, 3, 0, 1)],
    ],
    ids=["order", "port", "output", "number", "row or port"],
)
def test_what_is_read_must_agree_in_all(edges: list[tuple[int, ...]]) -> None:
    """Nodes 2 and 3 have the same type and attributes and, in the last case, the same hash."""
    types = ToyTypes(tuple(replace(kind, ports="vv") for kind in TOYS.types))
    graph = make_graph(types, [CELL, SWAP, CELL, CELL], edges, [2, 3], attr=[1] * 6, floats=[0.5, 0.5, 0.5])
    assert rewrite(graph, ("share",))[0] is graph


def test_floats_that_differ_in_sign_alone_do_not_share_a_hash() -> None:
    """Distinct spins: with one hash for all, this would take minutes."""
    types = ToyTypes((replace(TOYS.types[CELL], ports="", n_ints=0, n_floats=18, ranges={}),))
    n = 2**18
    floats = 1.0 - 2.0 * (np.arange(n)[:, None] >> np.arange(18) & 1)
    graph = make_graph(types, [0] * n, [], [0], floats=floats.ravel().tolist())
    assert rewrite(graph, ("share",))[0] is graph


def test_a_random_node_is_shared_by_nobody() -> None:
    """Two random identities of one word: only the word, and readers of the same random value, are shared."""
    edges = [(0, 1), (1, 2), (1, 2, 0, 1), (1, 3), (1, 3, 0, 1)]
    one = make_graph(RANDOM_TOYS, [WORD, IDENTITY, SWAP, SWAP], edges, [2, 3], attr=[3])
    result, done = rewrite(merge_graphs([one, one]), ("share",))
    assert done == Rewrites(shared=3)
    assert result.type_id.tolist() == [WORD, IDENTITY, SWAP, IDENTITY, SWAP]
    assert result.out_node.tolist() == [2, 2, 4, 4]


@each("seed", range(5))
def test_nothing_is_shared_unasked(seed: int) -> None:
    graph = draw_batch(seed)
    assert rewrite(graph)[1].shared == rewrite(graph, DEFAULT)[1].shared == 0


def test_types_without_attributes_are_shared_too() -> None:
    one = chain("leaf", "inner", "inner", "output")
    result, done = rewrite(merge_graphs([one] * 5), ("share",))
    assert done == Rewrites(shared=16)
    assert result.out_node.tolist() == [3] * 5


def test_the_empty_graph_is_kept() -> None:
    graph = merge_graphs([], TOYS)
    assert rewrite(graph, "all")[0] is graph


# Models.


def relative(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest expected number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    return float(np.max(np.abs(found - expected), initial=0.0) / np.max(np.abs(expected), initial=1e-300))


@pytest.mark.cases(1)
@each("policy", ["unbatched", "depth", "agenda"])
@each("way", ["all", "auto"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_losses_and_gradients_are_those_without_sharing(case: Case, way: str, policy: str) -> None:
    """Some instances occur twice, with different weights."""
    model, instances = case.draw(0, n_instances=12, dim=6)
    instances += instances[3:7]
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(instances))
    apart, shared = (
        ab.batched(model.loss, policy=policy, rewrites=rewrites, backend=Reference(poison=True))
        for rewrites in (UNSHARED, way)
    )
    assert relative(shared(instances), apart(instances)) < TO_UNSHARED
    value, grads = shared.value_and_grad(instances, reduce=weights)
    expected, expected_grads = apart.value_and_grad(instances, reduce=weights)
    assert relative(value, expected) < TO_UNSHARED
    assert grads.keys() == expected_grads.keys()
    for name, gradient in grads.items():
        assert relative(gradient, expected_grads[name]) < TO_UNSHARED, name
    assert shared.last is not None
    assert apart.last is not None
    assert shared.last.nodes < (0.9 if way == "all" else 1.01) * apart.last.nodes


@each("backend", ["reference", "cpu"])
def test_kept_plans_are_of_the_data(backend: str) -> None:
    """Sentences of the same lengths with and without repeated words are shared differently, so their plans differ."""
    model, trees = CASES[0].draw(3, n_instances=12, dim=6)
    twice = [*trees[:6], *trees[:6]]
    shared, apart = (ab.batched(model.loss, rewrites=rewrites, backend=backend) for rewrites in ("auto", UNSHARED))
    recorded = {"twice": shared.record_all(twice), "once": shared.record_all(trees)}
    nodes = Counter[tuple[str, int]]()
    for _ in range(3):
        for name, instances in (("twice", twice), ("once", trees)):
            value, grads = shared.value_and_grad(recorded[name])
            expected, expected_grads = apart.value_and_grad(instances)
            assert relative(value, expected) < TO_UNSHARED
            assert max(relative(grads[key], expected_grads[key]) for key in expected_grads) < TO_UNSHARED
            assert shared.last is not None
            assert shared.last.plan_hit is (nodes.total() >= 2)
            nodes[name, shared.last.nodes] += 1
    assert sorted(count for count in nodes.values()) == [3, 3]
    assert apart.explain(twice).nodes > shared.explain(twice).nodes


def test_a_small_mini_batch_pays_nothing_for_the_rule() -> None:
    model, trees = CASES[0].draw(1, n_instances=2, dim=6)
    counts = []
    for rewrites in ("auto", UNSHARED):
        loss = ab.batched(model.loss, rewrites=rewrites, backend="reference", plan_cache=0)
        graphs = loss.record_all(trees)
        for _ in range(3):
            loss(graphs)
        counts.append(files_entered(loss, graphs))
    assert counts[0].total() <= counts[1].total()


def test_every_instance_gets_what_it_returned() -> None:
    """Lists, and the same tree twice: the second result is bit-identical to the first."""
    model, trees = CASES[0].draw(2, n_instances=8, dim=6)
    trees.append(trees[4])
    roots, nodes = ab.batched(model.scores)(trees)
    shared_roots, shared_nodes = ab.batched(model.scores, rewrites="all")(trees)
    assert relative(shared_roots, roots) < TO_UNSHARED
    for found, expected in zip(shared_nodes, nodes, strict=True):
        assert relative(found, expected) < TO_UNSHARED
    assert np.array_equal(shared_nodes[4], shared_nodes[8])


class Drops(ab.Module):
    """Dropout in one cell, between two cells without it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.embedding = ab.Parameter(rng.standard_normal((5, 6)))
        self.output = ab.Linear(6, 6, rng=rng)

    @ab.cell
    def read(self, word: int) -> Any:
        return ab.lookup(self.embedding, word)

    @ab.cell
    def drop(self, state: Any) -> Any:
        return ab.dropout(state, 0.5)

    @ab.cell
    def score(self, state: Any) -> Any:
        return ab.sum(ab.tanh(self.output(state)))

    def loss(self, words: list[int]) -> Any:
        dropped = [self.drop(self.read(word)) for word in words]
        return ab.sum_n([self.score(state) for state in [*dropped, *dropped]])


def test_dropout_is_what_it_was() -> None:
    model = Drops().astype("float64")
    sentences = [[1, 2, 1], [1, 2, 1], [2], [2]]
    apart, shared = (ab.batched(model.loss, rewrites=rewrites, seed=3) for rewrites in (UNSHARED, "all"))
    value, grads = apart.value_and_grad(sentences, reduce=[1.0, 2.0, 3.0, 4.0])
    shared_value, shared_grads = shared.value_and_grad(sentences, reduce=[1.0, 2.0, 3.0, 4.0])
    assert relative(shared_value, value) < TO_UNSHARED
    assert max(relative(shared_grads[name], gradient) for name, gradient in grads.items()) < TO_UNSHARED
    losses = shared(sentences)
    assert relative(losses, apart(sentences)) < TO_UNSHARED
    assert len(set(losses.tolist())) == 4
    assert Counter(types_of_nodes(shared)) == {"read": 2, "drop": 8, "score": 8, "sum_n": 4}
    model.eval()
    assert relative(shared(sentences), apart(sentences)) < TO_UNSHARED


def test_a_draw_that_nothing_needs_keeps_no_node_apart() -> None:
    """The cell draws random numbers, but its value depends only on the word."""

    @ab.cell
    def wasteful(word: int) -> Any:
        values = ab.lookup(np.arange(4.0), word)
        ab.dropout(values, 0.5)
        return 2.0 * values

    run = ab.batched(lambda words: ab.sum_n([wasteful(word) for word in words]), rewrites="all")
    assert run([[1, 3], [3, 1], [1, 3]]).tolist() == [8.0, 8.0, 8.0]
    assert run.last is not None
    assert run.last.nodes == 4


def test_explain_says_how_many_nodes_are_shared() -> None:
    loss = ab.batched(Drops().loss, rewrites="all")
    report = loss.explain([[1, 2, 1], [1, 2, 1], [2], [2]])
    assert report.rewrites == Rewrites(shared=14)
    assert "rewrites: 14 nodes shared" in str(report)


class Leaves(ab.Module):
    """A cell that reads only a word and multiplies, and one that reads its result."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.embedding = ab.Parameter(rng.standard_normal((90, 32)))
        self.input, self.output = (ab.Linear(32, 32, rng=rng) for _ in range(2))

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.tanh(self.input(ab.lookup(self.embedding, word)))

    @ab.cell
    def join(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.output(left) + right)

    def loss(self, words: list[int]) -> Any:
        leaves = [self.leaf(word) for word in words]
        return ab.sum(functools.reduce(self.join, leaves))


def test_explain_says_what_the_rule_shared_and_what_not() -> None:
    loss = ab.batched(Leaves().loss, backend="reference")
    repeating = [[1, 2, k] for k in range(3, 43)]
    report = loss.explain(repeating)
    told = str(report)
    assert report.rewrites.shared == 78 + 39 == sum(found.equal for _, found in report.sharing)
    assert "  leaf: 78 of 120 nodes equal an earlier one, and are not computed again" in told
    assert "  join: 39 of 80 nodes equal an earlier one, and are not computed again" in told
    report = loss.explain([[1, 3]] + [[k, 89 - k] for k in range(40)])
    assert report.rewrites.shared == 0
    assert (
        "  leaf: 2 of the 64 looked up of 82 nodes equal an earlier one, but sharing them costs more than it saves"
        in str(report)
    )
    assert "join:" not in str(report)
    unshared = ab.batched(Leaves().loss, backend="reference", rewrites=UNSHARED).explain(repeating)
    assert (unshared.rewrites.shared, unshared.sharing) == (0, ())


def test_what_the_rule_shares_is_to_the_bit_what_all_shares() -> None:
    model = Leaves()
    sentences = [[1, 2, k] for k in range(3, 43)]
    ways = [ab.batched(model.loss, backend="reference", rewrites=rewrites) for rewrites in ("auto", "all")]
    (value, grads), (expected, expected_grads) = (loss.value_and_grad(sentences) for loss in ways)
    assert value == expected
    for name, gradient in grads.items():
        np.testing.assert_array_equal(np.asarray(gradient), np.asarray(expected_grads[name]))
    np.testing.assert_array_equal(*(loss(sentences) for loss in ways))
