"""The simulator, and what it keeps beside a schedule, against the definitions, after every batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from autobatch._native import find_depths
from autobatch.graph.dag import Dag, chains_ahead, reverse, reverse_edges, to_dag
from autobatch.schedule.chains import Chains, follow, is_critical, own_share, restart_chains, start_chains
from autobatch.schedule.restricted import start_restricted, unblock
from autobatch.schedule.schedule import Schedule, chain_lengths
from autobatch.schedule.schedule_check import check_schedule
from autobatch.schedule.simulator import Simulator, finish, restart, stack, start, start_all, step
from helpers.programs.graphs import random_batch, random_dag
from helpers.runs.ways import each

SEEDS = range(20)


def edges(dag: Dag) -> list[tuple[int, int]]:
    """(source, reader), as often as there are such edges."""
    return [(int(s), n) for n in range(dag.type_id.size) for s in dag.edge_src[dag.edge_ptr[n] : dag.edge_ptr[n + 1]]]


def paths(dag: Dag, node: int) -> Iterator[list[int]]:
    """Every path that starts at a node."""
    yield [node]
    for reader in {reader for source, reader in edges(dag) if source == node}:
        for path in paths(dag, reader):
            yield [node, *path]


def most_ahead(dag: Dag, node: int) -> list[int]:
    """The most nodes of each type on a path from a node."""
    return [max(sum(dag.type_id[n] == kind for n in path) for path in paths(dag, node)) for kind in range(dag.n_types)]


def ready_nodes(sim: Simulator, kind: int) -> list[int]:
    return sorted(sim.queue[sim.head[kind] : sim.tail[kind]].tolist())


def random_steps(dag: Dag, sim: Simulator, seed: int) -> Iterator[np.ndarray]:
    """Run random ready types to the end."""
    rng = np.random.default_rng(seed)
    while (sim.head < sim.tail).any():
        yield step(sim, int(rng.choice(np.flatnonzero(sim.head < sim.tail))))


class TestDag:
    @each("seed", SEEDS)
    def test_readers_are_the_edges_reversed(self, seed: int) -> None:
        graph = random_batch(seed)
        ptr, reader = reverse_edges(graph.edge_ptr, graph.edge_src)
        for node in range(graph.n_nodes):
            expected = [n for n in range(graph.n_nodes) for source in graph.inputs_of(n) if source == node]
            assert reader[ptr[node] : ptr[node + 1]].tolist() == expected

    @each("seed", SEEDS)
    def test_depths_are_those_of_the_longest_paths(self, seed: int) -> None:
        graph = random_batch(seed)
        expected: list[int] = []
        for node in range(graph.n_nodes):
            expected.append(max((expected[source] + 1 for source in graph.inputs_of(node)), default=0))
        assert find_depths(graph.edge_ptr, graph.edge_src).tolist() == expected

    @each("seed", SEEDS)
    def test_the_reverse_turns_every_edge_round(self, seed: int) -> None:
        dag = to_dag(random_batch(seed))
        turned, last = reverse(dag), dag.type_id.size - 1
        assert sorted(edges(turned)) == sorted((last - reader, last - source) for source, reader in edges(dag))
        assert turned.type_id.tolist() == dag.type_id.tolist()[::-1]

    @each("seed", SEEDS)
    def test_chains_ahead(self, seed: int) -> None:
        dag = to_dag(random_dag(seed, n_nodes=8))
        assert chains_ahead(dag).tolist() == [most_ahead(dag, node) for node in range(8)]

    @each("seed", SEEDS)
    def test_the_chain_bound_is_the_same_from_both_ends(self, seed: int) -> None:
        graph = random_batch(seed)
        for dag in (to_dag(graph), reverse(to_dag(graph))):
            assert chains_ahead(dag).max(axis=0, initial=0).tolist() == chain_lengths(graph).tolist()


class TestSimulator:
    @each("seed", SEEDS)
    def test_a_step_runs_all_that_is_ready_of_a_type(self, seed: int) -> None:
        graph = random_batch(seed)
        rng = np.random.default_rng(seed)
        sim = start(to_dag(graph))
        done: set[int] = set()
        while len(done) < graph.n_nodes:
            ready = {n for n in range(graph.n_nodes) if n not in done and set(graph.inputs_of(n)) <= done}
            by_type = [{n for n in ready if graph.type_id[n] == kind} for kind in range(graph.n_types)]
            assert (sim.tail - sim.head).tolist() == [len(nodes) for nodes in by_type]
            kind = int(rng.choice(np.flatnonzero(sim.tail - sim.head)))
            assert set(step(sim, kind).tolist()) == by_type[kind]
            done |= by_type[kind]
        schedule = Schedule(*finish(sim))
        check_schedule(graph, schedule)
        for kind in range(graph.n_types):
            in_rows = sim.queue[sim.segment[kind] : sim.segment[kind + 1]].tolist()
            assert in_rows == [node for other, nodes in schedule for node in nodes if other == kind]

    @each("seed", SEEDS)
    def test_chains_follow_the_definition(self, seed: int) -> None:
        dag = to_dag(random_dag(seed, n_nodes=10))
        ahead = np.array([most_ahead(dag, node) for node in range(10)])
        sim = start(dag)
        chains = start_chains(dag, sim)
        check_chains(sim, chains, ahead)
        for batch in random_steps(dag, sim, seed):
            follow(chains, sim, batch)
            check_chains(sim, chains, ahead)
        assert not chains.most.any()

    @each("seed", SEEDS)
    def test_a_critical_type_lowers_the_bound_by_one_and_no_other_does(self, seed: int) -> None:
        dag = to_dag(random_batch(seed))
        sim = start(dag)
        chains = start_chains(dag, sim)
        rng = np.random.default_rng(seed)
        while (sim.head < sim.tail).any():
            kind = int(rng.choice(np.flatnonzero(sim.head < sim.tail)))
            expected = chains.most.sum() - is_critical(chains, kind)
            follow(chains, sim, step(sim, kind))
            assert chains.most.sum() == expected

    @each("seed", SEEDS)
    def test_restricted_frontiers_follow_the_definition(self, seed: int) -> None:
        dag = to_dag(random_dag(seed, n_nodes=14))
        before = [{int(s) for s in dag.edge_src[dag.edge_ptr[n] : dag.edge_ptr[n + 1]]} for n in range(14)]
        for node in range(14):
            before[node] |= {n for source in before[node] for n in before[source]}
        sim, restricted, unrun = start(dag), start_restricted(dag), set(range(14))

        def frontier(kind: int) -> int:
            left = {n for n in unrun if dag.type_id[n] == kind}
            return sum(not (before[n] & left) for n in left)

        assert restricted.frontier.tolist() == [frontier(kind) for kind in range(dag.n_types)]
        for batch in random_steps(dag, sim, seed):
            unrun -= set(batch.tolist())
            unblock(restricted, sim, batch)
            assert restricted.frontier.tolist() == [frontier(kind) for kind in range(dag.n_types)]

    @each("seed", SEEDS)
    def test_stacked_dags_run_as_each_alone(self, seed: int) -> None:
        """Random choices in six dags, each in its own simulation and all in one; one is started over half-way."""
        rng = np.random.default_rng(seed)
        graphs = [random_batch(s) for s in rng.integers(0, 1000, size=6)]
        dags = [to_dag(graph) for graph in graphs]
        joined, node_ptr = stack(dags)
        many = start_all(joined, node_ptr)
        many_chains = start_chains(joined, many)
        alone = [start(dag) for dag in dags]
        alone_chains = [start_chains(dag, sim) for dag, sim in zip(dags, alone, strict=True)]
        again = int(rng.integers(6))
        for turn in range(100):
            for g, (sim, chains) in enumerate(zip(alone, alone_chains, strict=True)):
                first = g * dags[g].n_types
                mine = slice(first, first + dags[g].n_types)
                assert ((many.head < many.tail)[mine] == (sim.head < sim.tail)).all()
                if (sim.head == sim.tail).all():
                    continue
                kind = int(rng.choice(np.flatnonzero(sim.head < sim.tail)))
                batch, same = step(sim, kind), step(many, first + kind)
                assert (same - node_ptr[g]).tolist() == batch.tolist()
                follow(chains, sim, batch)
                follow(many_chains, many, same)
                types = range(first, first + dags[g].n_types)
                assert [own_share(many_chains, t) for t in types] == [own_share(chains, t - first) for t in types]
                assert many_chains.most[types.start : types.stop].tolist() == chains.most.tolist()
                assert many_chains.ready_height[types.start : types.stop].tolist() == chains.ready_height.tolist()
            if turn == 3:
                restart(many, joined, again)
                restart_chains(many_chains, many, again)
                restart(alone[again], dags[again], 0)
                restart_chains(alone_chains[again], alone[again], 0)
        for graph, sim in zip(graphs, alone, strict=True):
            check_schedule(graph, Schedule(*finish(sim)))


def check_chains(sim: Simulator, chains: Chains, ahead: np.ndarray) -> None:
    """Compare M, criticality, shares and heights with what the ready nodes say."""
    ready = [ready_nodes(sim, kind) for kind in range(len(sim.head))]
    everything = [node for nodes in ready for node in nodes]
    for kind, own in enumerate(ready):
        most = max((ahead[node, kind] for node in everything), default=0)
        at_most = [node for node in everything if most and ahead[node, kind] == most]
        assert chains.most[kind] == most
        assert is_critical(chains, kind) == (bool(at_most) and set(at_most) <= set(own))
        assert own_share(chains, kind) == (len(set(at_most) & set(own)) / len(at_most) if at_most else 0.0)
        assert chains.ready_height[kind] == sum(ahead[node].sum() for node in own)
