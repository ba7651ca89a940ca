"""Test rewrites of graphs: wider sums, removed nodes and unused readers; results are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain as join
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import GraphError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.graph import Graph
from autobatch.graph.graph_check import check_graph
from autobatch.graph.rewrite import PASSES, Rewrites, rewrite
from helpers.programs.graphs import (
    ADD,
    ADD_WIDE,
    CELL,
    IDENTITY,
    SUM_N,
    SWAP,
    TOYS,
    WORD,
    random_batch,
    random_toys,
)
from helpers.runs.ways import each

SEEDS = range(20)
Value = tuple[object, ...]


def edges_of(graph: Graph, node: int) -> Iterator[tuple[int, int, int]]:
    """Yield (source, output, port) for each input of a node."""
    for e in range(graph.edge_ptr[node], graph.edge_ptr[node + 1]):
        yield int(graph.edge_src[e]), int(graph.edge_out[e]), int(graph.edge_in[e])


def meaning(graph: Graph) -> list[Value]:
    """Write out what each output computes: sums as the list of their terms, passed values as themselves.

    Several values of a plain port are their sum.
    """
    ints, floats = iter(graph.attr.tolist()), iter(graph.floats.tolist())
    values: dict[tuple[int, int], Value] = {}
    for node, kind in enumerate(graph.type_id):
        toy = TOYS.types[kind]
        data = [next(ints) for _ in range(toy.n_ints)], [next(floats) for _ in range(toy.n_floats)]
        ports: dict[int, list[Value]] = {}
        for source, output, port in edges_of(graph, node):
            ports.setdefault(port, []).append(values[source, output])
        ports = {p: [total(v)] if toy.ports[p] == "p" else v for p, v in ports.items()}
        for output in range(toy.n_outputs):
            if toy.sum_type:
                values[node, 0] = total(list(join.from_iterable(ports.values())))
            elif output in toy.passes:
                (values[node, output],) = ports[toy.passes[output]]
            else:
                values[node, output] = (toy.name, output, *map(tuple, data), *((p, *v) for p, v in ports.items()))
    return [values[int(n), int(p)] for n, p in zip(graph.out_node, graph.out_port, strict=True)]


def total(terms: list[Value]) -> Value:
    """Sum values: inner sums are flattened, and a sum of one value is that value."""
    spread: list[Value] = []
    for term in terms:
        spread += term[1:] if term[0] == "sum" and len(term) > 1 else [term]  # type: ignore[arg-type]
    return spread[0] if len(spread) == 1 else ("sum", *spread)


def small_toys(seed: int) -> Graph:
    """Draw two instances whose values stay short when written out."""
    return merge_graphs([random_toys(seed, n_nodes=14), random_toys(seed + 1000, n_nodes=14)])


@pytest.mark.cases(6)
@each("passes", [p for n in range(6) for p in combinations(PASSES, n)])
@pytest.mark.parametrize("seed", range(15))
def test_no_pass_changes_what_is_computed(seed: int, passes: tuple[str, ...]) -> None:
    graph = small_toys(seed)
    before = graph.words.copy()
    result, _ = rewrite(graph, passes)
    check_graph(result)
    assert graph.words.tolist() == before.tolist()
    assert meaning(result) == meaning(graph)
    assert result.out_slot.tolist() == graph.out_slot.tolist()
    assert result.structures == graph.structures


@each("seed", SEEDS)
def test_nothing_is_left_to_do(seed: int) -> None:
    graph = merge_graphs([random_toys(seed), random_toys(seed + 1000)])
    result, _ = rewrite(graph)
    arrays = TOYS.arrays()
    read = [(s, o, n) for n in range(result.n_nodes) for s, o, _ in edges_of(result, n)]
    wanted = list(zip(result.out_node.tolist(), result.out_port.tolist(), strict=True))
    assert {s for s, _, _ in read} | {n for n, _ in wanted} == set(range(result.n_nodes))
    for source, output in [*((s, o) for s, o, _ in read), *wanted]:
        toy = TOYS.types[result.type_id[source]]
        assert output not in toy.passes
        assert not (toy.sum_type == toy.name and len(result.inputs_of(source)) == 1)
    for source in range(result.n_nodes):
        readers = [n for s, _, n in read if s == source]
        kinds = arrays.sum_type[result.type_id[[source, *readers]]]
        if kinds[0] >= 0:
            assert TOYS.types[result.type_id[source]].name.startswith("sum_n")
            if len(readers) == 1 and source not in result.out_node and kinds[0] == kinds[1]:
                assert result.inputs_of(source) == []
    again, done = rewrite(result)
    assert again is result
    assert done == Rewrites()


@each("seed", SEEDS)
def test_the_report_counts_every_node_that_went(seed: int) -> None:
    graph = small_toys(seed)
    result, done = rewrite(graph)
    assert graph.n_nodes - result.n_nodes == done.dissolved + done.dropped + done.folded
    kinds = [TOYS.types[kind].name for kind in result.type_id]
    assert kinds.count("add") == kinds.count("add_wide") == 0


def test_a_chain_of_adds_becomes_one_sum() -> None:
    r"""
    0 1   2 3
    |  \ /  |
    |   4   |      4 = 1 + 2, 5 = 0 + 4, 6 = 5 + 3
     \ /   /
      5   /
       \ /
        6
    """
    graph = make_graph(
        TOYS,
        [WORD] * 4 + [ADD] * 3,
        [(1, 4, 0, 0), (2, 4, 0, 1), (0, 5, 0, 0), (4, 5, 0, 1), (5, 6, 0, 0), (3, 6, 0, 1)],
        [6],
        attr=[10, 11, 12, 13],
    )
    result, done = rewrite(graph)
    assert done == Rewrites(widened=1, sums=1, dissolved=2)
    assert result.type_id.tolist() == [WORD] * 4 + [SUM_N]
    assert result.inputs_of(4) == [0, 1, 2, 3]
    assert result.edge_in.tolist() == [0, 0, 0, 0]


def test_a_sum_that_is_used_twice_stays() -> None:
    r"""
    0   0        1 = 0 + 0 is read by 2, and returned
     \ /
      1    0
     / \  /
    *   2
    """
    graph = make_graph(
        TOYS, [WORD, ADD, ADD], [(0, 1, 0, 0), (0, 1, 0, 1), (1, 2, 0, 0), (0, 2, 0, 1)], [2, 1], attr=[3]
    )
    result, done = rewrite(graph)
    assert done == Rewrites(widened=2)
    assert result.inputs_of(1) == [0, 0]
    assert result.inputs_of(2) == [1, 0]
    assert result.out_node.tolist() == [2, 1]


def test_sums_of_different_kinds_stay_apart() -> None:
    graph = make_graph(
        TOYS, [WORD, ADD, ADD_WIDE], [(0, 1, 0, 0), (0, 1, 0, 1), (1, 2, 0, 0), (0, 2, 0, 1)], [2], attr=[3]
    )
    _, done = rewrite(graph)
    assert done == Rewrites(widened=2)


def test_a_value_read_twice_by_one_sum_is_counted_twice() -> None:
    graph = make_graph(TOYS, [WORD, ADD, ADD], [(0, 1, 0, 0), (0, 1, 0, 1), (1, 2, 0, 0), (1, 2, 0, 1)], [2], attr=[3])
    result, done = rewrite(graph)
    assert done == Rewrites(widened=2)
    assert result.inputs_of(2) == [1, 1]


def test_a_sum_of_nothing_stays_a_term() -> None:
    """Removing it would leave a sum of one value, which only another forward pass would remove."""
    graph = make_graph(TOYS, [WORD, SUM_N, ADD], [(0, 2, 0, 0), (1, 2, 0, 1)], [2], attr=[3])
    result, done = rewrite(graph)
    assert done == Rewrites(widened=1)
    assert result.inputs_of(2) == [0, 1]


def test_a_reader_that_is_dropped_does_not_count() -> None:
    r"""
    0   0        1 = 0 + 0 is read by 2, which reaches the output, and by 3, which does not
     \ /
      1    0
     / \  /
    3   2 -> *
    """
    edges = [(0, 1, 0, 0), (0, 1, 0, 1), (1, 2, 0, 0), (0, 2, 0, 1), (1, 3)]
    graph = make_graph(TOYS, [WORD, ADD, ADD, IDENTITY], edges, [2], attr=[3])
    result, done = rewrite(graph)
    assert done == Rewrites(dropped=1, widened=1, sums=1, dissolved=1)
    assert result.inputs_of(1) == [0, 0, 0]


def test_a_value_passed_through_is_read_at_its_source() -> None:
    r"""
    0   1          2 swaps its two inputs and adds an output of its own; 3 and 4 pass on what 2 passes
     \ /
      2
      |.0 = 1
      3
      |
      4 -> *
    """
    graph = make_graph(
        TOYS, [WORD, WORD, SWAP, IDENTITY, IDENTITY], [(0, 2), (1, 2, 0, 1), (2, 3), (3, 4)], [4], attr=[5, 6]
    )
    forwarded, done = rewrite(graph, ("forward",))
    assert done == Rewrites(forwarded=3)
    assert forwarded.inputs_of(4) == [1]
    result, done = rewrite(graph)
    assert done == Rewrites(forwarded=3, dropped=4)
    assert result.attr.tolist() == [6]
    assert result.out_node.tolist() == [0]


def test_a_sum_of_one_value_is_that_value() -> None:
    graph = make_graph(TOYS, [WORD, SUM_N, CELL], [(0, 1), (1, 2)], [2], attr=[5, 1, 2], floats=[0.5])
    result, done = rewrite(graph)
    assert done == Rewrites(forwarded=1, dropped=1)
    assert result.inputs_of(1) == [0]


def test_a_sum_of_one_pair_is_that_pair() -> None:
    """Two cells return pairs. A third reads the sum of the first pair alone, and a fourth the sum of both."""

    @ab.cell
    def pair(x: int) -> tuple[Any, Any]:
        return ab.lookup(np.arange(4.0), x), ab.lookup(np.ones(4), x)

    @ab.cell
    def product(both: Any) -> Any:
        return both[0] * both[1]

    def both_products(_: None) -> Any:
        first, second = pair(2), pair(3)
        return product(ab.sum_n([first])) + product(ab.sum_n([first, second]))

    loss = ab.batched(both_products, rewrites=("forward", "dead", "sums"))
    assert loss([None]).tolist() == [2.0 * 1.0 + (2.0 + 3.0) * (1.0 + 1.0)]
    assert loss.last is not None
    graph = loss.last.graph
    assert [graph.types.names[kind] for kind in graph.type_id].count("sum_n#1") == 1
    assert loss.last.nodes == 6


def test_dead_nodes_take_their_attributes_along() -> None:
    one = make_graph(
        TOYS, [WORD, WORD, CELL, CELL], [(0, 2), (1, 3)], [3], attr=[1, 2, 30, 3, 40, 4], floats=[0.3, 0.4]
    )
    result, done = rewrite(merge_graphs([one, one]))
    assert done == Rewrites(dropped=4)
    assert result.instance_ptr.tolist() == [0, 2, 4]
    assert result.attr.tolist() == [2, 40, 4] * 2
    assert result.floats.tolist() == [0.4] * 2


def test_a_graph_from_which_nothing_is_asked_is_kept() -> None:
    graph = make_graph(TOYS, [WORD, WORD], [], attr=[1, 2])
    assert rewrite(graph)[0] is graph


@each("seed", range(20))
def test_types_that_rule_a_pass_out_give_the_same_graph(seed: int) -> None:
    graph = random_batch(seed)
    result, done = rewrite(graph, ("forward", "sums"))
    assert result is graph
    assert done == Rewrites()


def test_the_empty_graph_is_kept() -> None:
    graph = merge_graphs([], TOYS)
    assert rewrite(graph)[0] is graph


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(GraphError, match=r"\['sort'\].*'forward', 'dead', 'sums', 'fold', 'share_products', 'share'"):
        rewrite(merge_graphs([], TOYS), ("sums", "sort"))


def test_a_name_is_no_list_of_names() -> None:
    with pytest.raises(GraphError, match=r"passes must be 'auto', 'all', or .*, got 'share'"):
        rewrite(merge_graphs([], TOYS), "share")


def test_the_report_reads_as_a_sentence() -> None:
    assert str(Rewrites(3, 7, 1, 2, 5, 760, 6772, 6000)) == (
        "3 edges forwarded; 7 unused nodes dropped; 5 sums dissolved into 2; 1 sums made variadic; "
        "760 sums folded into 6772 edges; 6000 nodes shared"
    )


def test_a_comb_of_sums_becomes_one_sum() -> None:
    """The long one would take minutes if a term were copied for each sum that it passes."""

    def comb(n: int) -> Graph:
        edges = [(max(n - 1 + k, 0) if k else 0, n + k, 0, 0) for k in range(n - 1)]
        edges += [(k + 1, n + k, 0, 1) for k in range(n - 1)]
        return make_graph(TOYS, [WORD] * n + [ADD] * (n - 1), edges, [2 * n - 2], attr=[0] * n)

    result, done = rewrite(comb(50))
    assert done == Rewrites(widened=1, sums=1, dissolved=48)
    assert result.inputs_of(50) == list(range(50))
    assert rewrite(comb(100_000))[1] == Rewrites(widened=1, sums=1, dissolved=99_998)
