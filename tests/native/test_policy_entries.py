"""Test that the core refuses invalid tables, DAGs and numbers, copies DAGs, and lets signals interrupt searches."""

from __future__ import annotations

import copy
import pickle
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autobatch import _native
from autobatch._native import Course, Simulation
from autobatch.errors import GraphError
from autobatch.graph.dag import Dag, to_dag
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.machine import Fsm, Machine, MachineRules, TypeNames
from autobatch.policies.fsm.practice import NO_PLAN
from autobatch.policies.fsm.qlearning import QLearning, learn_fsm
from autobatch.policies.fsm.table import Table, make_table
from autobatch.policies.rules.network import Deep, learned_network
from autobatch.policies.rules.rules import LEARNED, Score, Weights
from autobatch.policies.search.reduction import find_suffixes
from helpers.programs.graphs import random_batch, random_dag, random_toys
from helpers.runs.ways import each

RULES, BASE = QLearning().rules(), MachineRules(0, 0)


def chain(n_types: int = 2) -> Dag:
    """Make a chain of three nodes, of types 0, 1 and 0."""
    return make_dag([0, 1, 0], [0, 0, 1, 2], [0, 1], n_types)


def make_dag(types: list[int], edge_ptr: list[int], edge_src: list[int], n_types: int) -> Dag:
    return Dag(np.array(types, np.int32), np.array(edge_ptr, np.int32), np.array(edge_src, np.int32), n_types)


def table_for(dag: Dag, room: int = 20) -> Table:
    return make_table(dag.n_types, dag.n_types, room)


def learn(table: Table) -> None:
    Course(chain()).run(table, BASE, RULES, 0.5, np.random.PCG64(0), NO_PLAN)


@each("name", ["states", "values", "updates"])
def test_tables_that_share_memory_are_not_written(name: str) -> None:
    table = table_for(chain())
    memory = np.zeros(4096, np.int64)
    part = getattr(table, name)
    shared = memory.view(part.dtype)[: part.size].reshape(part.shape)
    slots = memory.view(np.int32)[: table.slots.size]
    slots[:] = -1
    with pytest.raises(ValueError, match="table must have parts that fit each other"):
        _native.add_states(table._replace(**{name: shared}, slots=slots), np.ones((1, 2), np.int16))
    number = memory.view(np.int32)[8:9]
    number[:] = 0
    with pytest.raises(ValueError, match="table must have parts that fit each other"):
        learn(table._replace(**{name: shared}, n_states=number))


def test_states_that_are_added_are_not_written_meanwhile() -> None:
    table = table_for(chain())
    learn(table)
    with pytest.raises(ValueError, match="table must have memory of its own"):
        _native.add_states(table, table.states[:2])


def test_numbers_of_columns_that_do_not_fit_32_bits_are_refused() -> None:
    wide = (np.zeros((0, 2**31), kind) for kind in (np.int16, np.float64, np.int32))
    table = (*wide, np.full(16, -1, np.int32), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="table must have parts that fit each other"):
        _native.plan_by_machine(chain(), table, BASE, LEARNED)


@each("kind", [lambda dag: Course(dag), lambda dag: Simulation(dag), lambda dag: _native.longest_chains(dag)])
def test_too_many_types_are_refused(kind: Callable[[Dag], Any]) -> None:
    with pytest.raises(ValueError, match=r"type_id must lie in 0\.\.n_types - 1"):
        kind(chain(2**31 - 1))


class Spoils:
    """A number that changes edges when it is read."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag

    def __index__(self) -> int:
        self.dag.edge_src[:] = -(2**31)
        return 1

    def __float__(self) -> float:
        return float(self.__index__())


@each(
    "call",
    [
        lambda dag, n: _native.count_chains(dag.type_id, dag.edge_ptr, dag.edge_src, n),
        lambda dag, n: _native.longest_chains(dag._replace(n_types=n)),
        lambda dag, n: _native.plan_by_rule(dag, (n, 1, False, LEARNED)),
        lambda dag, n: _native.plan_by_rule(dag, (4, 1, False, (n, 0.0, 0.0, 0.0))),
        lambda dag, n: _native.embed(dag, dag.type_id, n),
        lambda dag, n: _native.local_search(dag, dag.type_id, 1, n, 0.0),
        lambda dag, n: _native.local_search(dag, dag.type_id, 1, 1, n),
        lambda dag, n: _native.find_suffixes(dag, np.ones(2, np.bool_), n),
        lambda dag, n: _native.visit_states(dag, dag.type_id, 2, BASE, n),
        lambda dag, n: Course(dag).run(table_for(dag), (n, 0), RULES, 0.5, np.random.PCG64(0), NO_PLAN),
        lambda dag, n: Course(dag).run(table_for(dag), BASE, RULES, n, np.random.PCG64(0), NO_PLAN),
    ],
)
def test_numbers_are_not_asked_for_their_value(call: Callable[[Dag, Any], Any]) -> None:
    dag = chain()
    with pytest.raises(TypeError, match=r"must be (an int|a float), got Spoils"):
        call(dag, Spoils(dag))
    assert dag.edge_src.tolist() == [0, 1]


def test_courses_and_simulations_copy_their_dags() -> None:
    dag, table = chain(), table_for(chain())
    course, simulation = Course(dag), Simulation(dag)
    for part in dag[:3]:
        part[:] = 10**8
    course.run(table, BASE, RULES, 0.0, np.random.PCG64(0), np.array([0, 1, 0], np.int32))
    assert course.episode()[1].tolist() == [0, 1, 0]
    for type_id in (0, 1, 0):
        simulation.step(type_id)
    assert [part.tolist() for part in simulation.batches()] == [[0, 1, 0], [0, 1, 2, 3], [0, 1, 2]]


@each("generator", [3, None, object(), np.random.default_rng(0)])
def test_episodes_need_a_bit_generator(generator: Any) -> None:
    with pytest.raises(TypeError, match="generator must be a NumPy bit generator, got "):
        Course(chain()).run(table_for(chain()), BASE, RULES, 0.5, generator, NO_PLAN)


def test_an_unmeasured_simulation_measures_nothing() -> None:
    simulation = Simulation(chain(), is_measured=False)
    simulation.step(0)
    for measure in (simulation.bound, simulation.features, simulation.tables, lambda: simulation.reward(0, 1)):
        with pytest.raises(ValueError, match="simulation must be measured"):
            measure()
    assert simulation.ready().tolist() == [0, 1]
    with pytest.raises(ValueError, match="kind must be 0 or 1, got 2"):
        Simulation(chain()).reward(2, 0)


def test_planning_reads_tables_that_cannot_be_written() -> None:
    dag = chain()
    table = make_table(2, 2)
    Course(dag).run(table, BASE, RULES, 0.0, np.random.PCG64(0), np.array([0, 1, 0], np.int32))
    planned = _native.plan_by_machine(dag, table, BASE, LEARNED)[0]
    for part in table:
        part.flags.writeable = False
    assert [a.tolist() for a in _native.plan_by_machine(dag, table, BASE, LEARNED)[0]] == [a.tolist() for a in planned]
    with pytest.raises(ValueError, match="read-only"):
        _native.add_states(table, np.ones((1, 2), np.int16))


def test_scores_that_are_no_numbers_change_nothing() -> None:
    """The first ready type is kept. A node of type 0 and one of type 1 are read by a later node."""
    dag = make_dag([0, 1, 2], [0, 0, 0, 2], [0, 1], 3)
    batches = Score(weights=Weights(float("nan"), 1.0, 1.0, 1.0)).plan(dag)
    assert batches[0].tolist() == [0, 1, 2]


def test_networks_of_other_shapes_are_refused() -> None:
    network = learned_network()
    with pytest.raises(ValueError, match="weights must have shapes that fit each other"):
        Deep(network._replace(w1=network.w1.T.copy())).plan(chain())


def test_returns_over_more_steps_than_there_are_batches() -> None:
    dags = [to_dag(random_batch(seed)) for seed in range(3)]
    names = TypeNames(*[tuple(map(str, range(dags[0].n_types)))] * 2)
    tables = [
        learn_fsm(dags, names, settings=QLearning(episodes=9, n_steps=n)).tables["forward"] for n in (10**6, 2**40)
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*tables, strict=True))


def test_machines_name_edges_that_point_backward() -> None:
    graph = random_dag(1, 12)
    words = graph.words.copy()
    turned = Graph(words, graph.floats, graph.types, graph.structures)
    turned.edge_src[0] = graph.n_nodes - 1
    machine = Machine()
    names = TypeNames.of(graph.types)
    with pytest.raises(GraphError):
        Fsm(machine, names, {}).schedule(turned)


def test_a_walk_takes_dags_from_before_the_machine_learned_more_types() -> None:
    names = TypeNames(("a", "b", "c"), ("a", "b", "c"))
    walk = Fsm(Machine(), names, {}).follow("forward", [chain()])
    assert sum(walk.visits.values()) == 3


def test_environments_are_copied_and_pickled() -> None:
    pytest.importorskip("gymnasium")
    from autobatch.policies.env import Batching

    env = Batching([to_dag(random_toys(5))])
    _, told = env.reset(seed=0)
    env.step(int(told["action_mask"].argmax()))
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert [part.tolist() for part in twin.batches()] == [part.tolist() for part in env.batches()]
        np.testing.assert_equal(twin._observe(), env._observe())


class Stopped(Exception):
    """Raised by the signal."""


def stopped_after(seconds: float, call: Callable[[], Any]) -> float:
    """Return how many seconds a call continued after a signal."""

    def stop(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(Stopped):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return time.perf_counter() - began - seconds


def test_searches_are_interrupted() -> None:
    dag = to_dag(random_dag(7, 4000))
    order = _native.plan_by_rule(dag, (4, 1, False, LEARNED))[0]
    assert stopped_after(0.1, lambda: _native.local_search(dag, order, 1, 2**62, 0.0)) < 5
    chains = np.random.default_rng(0).integers(0, 6, (30, 30)).astype(np.int32)
    ptr = np.cumsum([0, *([0] + [1] * 29) * 30]).astype(np.int32)
    before = np.delete(np.arange(900, dtype=np.int32), np.arange(29, 900, 30))
    suffixes = find_suffixes(Dag(chains.reshape(-1), ptr, before, 6))
    cost = np.ones(suffixes.n_types)
    assert stopped_after(0.1, lambda: _native.search_layers(suffixes, cost, np.inf, 2**62, 2**62)) < 5
