"""Test state machines: their states by definition, and their behaviour in new states and with new types."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from autobatch import policies
from autobatch._native import add_states, visit_states
from autobatch.errors import PolicyError
from autobatch.graph.build import make_graph, merge_graphs
from autobatch.graph.dag import to_dag
from autobatch.graph.graph import Graph, NamedTypes
from autobatch.policies.fsm.machine import WAYS, Fsm, Machine, TypeNames, place_types
from autobatch.policies.fsm.qlearning import QLearning, keep_learning, learn_fsm
from autobatch.policies.fsm.table import ENCODINGS, describe_state, make_table, widen_table
from autobatch.policies.learning import learn
from autobatch.policies.rules.directed import Direction
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import min_batches
from autobatch.schedule.schedule_check import check_schedule
from helpers.checkers.machine_tables import rows_of, states_by_hand
from helpers.programs.graphs import LETTERS, TREE, chain, random_batch, random_dag, random_tree
from helpers.runs.ways import each

MACHINES = [Machine(encoding, critical) for encoding in ENCODINGS for critical in (False, True)]


@each("machine", MACHINES)
@each("seed", range(6))
def test_states_are_those_defined(machine: Machine, seed: int) -> None:
    for graph in (random_dag(seed), random_batch(seed), random_tree(seed)):
        dag = to_dag(graph)
        sequence = policies.get("sufficient").schedule(graph).batch_type
        states = visit_states(dag, sequence, dag.n_types, machine.rules(), machine.width(dag.n_types))
        assert states.tolist() == states_by_hand(dag, sequence.tolist(), machine.encoding, machine.critical)


def test_describing_states() -> None:
    """Two a and one critical b."""
    names = ("a", "b", "c")
    assert describe_state([1, 2, 0, 0, 1, 0], names, "sort") == "a > b (critical)"
    assert describe_state([2, 1, 0], names, "max") == "a (most nodes), b"
    assert describe_state([1, 0, 1], names, "base") == "a, c"


def untaught(direction: Direction = "forward", compact: bool = False, machine: Machine = Machine()) -> Fsm:  # noqa: B008
    return Fsm(machine, TypeNames.of(LETTERS), {}, direction, compact)


@each("options", ["", "+backward", "+both", "+both+compact"])
@each("seed", range(8))
def test_a_machine_that_knows_nothing_is_the_rule(options: str, seed: int) -> None:
    graph = random_batch(seed)
    policy = untaught(
        "backward" if "back" in options else "both" if "both" in options else "forward", "comp" in options
    )
    rule = policies.get("score" + options)
    assert policy.name == "fsm" + options
    assert policy.schedule(graph).batch_type.tolist() == rule.schedule(graph).batch_type.tolist()
    assert policy.unseen == policy.decided >= len(rule.schedule(graph))
    assert policy.unseen_share == (1.0 if graph.n_nodes else 0.0)


def test_a_masked_machine_that_knows_nothing_runs_critical_types_where_it_can() -> None:
    n_masked = 0
    for seed in range(40):
        dag = to_dag(random_dag(seed))
        sequence = untaught(machine=Machine(mask=True)).plan(dag)[0].tolist()
        for kind, state in zip(sequence, states_by_hand(dag, sequence, "base", True), strict=True):
            critical = state[dag.n_types :]
            if any(critical):
                assert critical[kind]
                n_masked += 1
    assert n_masked > 200


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize("compact", [False, True])
def test_with_a_rival_no_schedule_is_longer_than_that_of_either(direction: Direction, compact: bool) -> None:
    """Each machine is sometimes shorter, and the pair is always as good as the better one."""
    types = TypeNames.of(LETTERS)
    dags = [to_dag(random_batch(seed)) for seed in range(3)]
    machines = Machine("sort", mask=True), Machine("base", critical=True, mask=True)
    alone = [
        learn_fsm(dags, types, machine, QLearning(episodes=30), direction=direction, compact=compact)
        for machine in machines
    ]
    pair = alone[0].with_rival(alone[1])
    assert [machine for machine, _ in pair.machines] == [*machines]
    assert pair.about["rivals"] == [alone[1].about]
    shorter = np.zeros(2, int)
    for seed in range(3, 60):
        graph = random_batch(seed)
        lengths = [len(policy.schedule(graph)) for policy in alone]
        schedule = pair.schedule(graph)
        check_schedule(graph, schedule)
        assert len(schedule) == min(lengths)
        assert pair.decided == sum(policy.decided for policy in alone)
        assert pair.unseen == sum(policy.unseen for policy in alone)
        shorter += np.array(lengths) < max(lengths)
    assert shorter.min() > 3, "neither is always the better one"
    for one, other in zip(pair.apart(), alone, strict=True):
        assert [len(one.schedule(random_batch(k))) for k in range(9)] == [
            len(other.schedule(random_batch(k))) for k in range(9)
        ]


def teach(policy: Fsm, state: list[int], values: dict[int, float]) -> None:
    (number,) = add_states(policy.tables["forward"], np.array([state], np.int16))
    for kind, value in values.items():
        policy.tables["forward"].values[number, kind] = value
        policy.tables["forward"].updates[number, kind] = 1


def test_the_highest_value_among_those_tried_is_run() -> None:
    """
    a - b     In the state "a b" value -2 for b beats -3 for a; c has value 0, but was never tried and is not ready.
    b
    """
    graph = make_graph(LETTERS, [0, 1, 1], [(0, 1)])
    policy = untaught(machine=Machine("base"))
    teach(policy, [1, 1, 0, 0], {0: -3.0, 1: -2.0})
    assert policy.schedule(graph).batch_type.tolist() == [1, 0, 1]
    assert (policy.unseen, policy.decided) == (2, 3)
    teach(policy, [1, 1, 0, 0], {0: -2.0})
    assert policy.schedule(graph).batch_type.tolist() == [0, 1]  # the lowest type wins ties
    assert (policy.unseen, policy.decided) == (1, 2)


@each("machine", MACHINES)
@each("seed", range(4))
def test_types_that_it_does_not_know_are_left_to_the_rule(machine: Machine, seed: int) -> None:
    known, more = NamedTypes(("a", "b", "c")), NamedTypes(("d", "a", "c", "b"))
    graphs = [random_dag(10 * seed + i, types=known) for i in range(3)]
    policy = learn_fsm([to_dag(g) for g in graphs], TypeNames.of(known), machine, QLearning(episodes=50))
    graph = random_dag(seed, n_nodes=80, types=more)
    schedule = policy.schedule(graph)
    check_schedule(graph, schedule)
    assert 0 < policy.unseen <= policy.decided == len(schedule)
    fewer = random_dag(seed, n_nodes=80, types=NamedTypes(("c", "b")))
    check_schedule(fewer, policy.schedule(fewer))


def test_types_keep_their_meaning_whatever_their_numbers() -> None:
    """The machine does the same on the same graph with types in reverse order."""
    turned = NamedTypes(LETTERS.names[::-1])
    for seed in range(10):
        graph = random_dag(seed, n_nodes=40)
        policy = learn_fsm([to_dag(graph)], TypeNames.of(LETTERS), Machine("sort", True), QLearning(episodes=20))
        other = Graph(graph.words.copy(), graph.floats, turned, graph.structures)
        other.type_id[:] = 3 - graph.type_id
        first, second = policy.schedule(graph), policy.schedule(other)
        check_schedule(other, second)
        assert second.batch_type.tolist() == (3 - first.batch_type).tolist()


def names_of(**outlines: str) -> TypeNames:
    return TypeNames(tuple(name.replace("_", "#") for name in outlines), tuple(outlines.values()))


def test_types_are_found_by_what_they_are() -> None:
    known = names_of(leaf="leaf(int)", sum="sum(value*)")
    met = names_of(sum_1="sum(tuple*)", sum_2="sum(value*)", leaf="leaf(int)")
    assert place_types(known, met).tolist() == [2, 1, 0]


def test_types_that_look_the_same_stay_apart() -> None:
    known = names_of(read_1="read(word)", read_2="read(word)", tag="tag(state)")
    met = names_of(tag="tag(state)", read_1="read(word)", read_2="read(word)", read_3="read(word)")
    assert place_types(known, met).tolist() == [2, 0, 1, 3]


def test_a_policy_for_a_cell_that_changed_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"merge\(left: value\), .* merge\(left: int\)"):
        place_types(names_of(merge="merge(left: value)", sum="sum()"), names_of(merge="merge(left: int)", sum="sum()"))


def test_a_policy_for_other_cells_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"a, b, c, d, .* leaf, inner_a, inner_b, output, loss"):
        untaught().schedule(random_tree(0))


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(
        PolicyError, match=r"encoding of a state machine must be one of base, max, sort.*, got 'sorted'"
    ):
        Machine("sorted")  # type: ignore[arg-type]


def test_a_table_for_more_types_knows_what_it_knew() -> None:
    table = make_table(2, 4)
    for i, state in enumerate([[1, 2, 0, 1], [2, 1, 1, 0], [1, 0, 1, 0]]):
        (number,) = add_states(table, np.array([state], np.int16))
        table.values[number], table.updates[number] = [-i, i / 2], [i, 7]
    wide = widen_table(table, 3, 6)
    assert rows_of(wide) == {
        (1, 2, 0, 0, 1, 0): ([0, 0, 0], [0, 7, 0]),
        (2, 1, 0, 1, 0, 0): ([-1, 0.5, 0], [1, 7, 0]),
        (1, 0, 0, 1, 0, 0): ([-2, 1, 0], [2, 7, 0]),
    }
    assert add_states(wide, np.array([[1, 0, 0, 1, 0, 0], [1, 0, 1, 1, 0, 0]], np.int16)).tolist() == [2, 3]


@pytest.mark.parametrize("machine", [Machine("sort", True, True), Machine("sort", True), Machine("max")], ids=str)
def test_a_machine_that_keeps_learning_knows_more_and_more_states(machine: Machine) -> None:
    graphs = [merge_graphs([random_tree(100 * i + j) for j in range(8)]) for i in range(6)]
    runs = []
    for _ in range(2):
        policy = Fsm(machine, TypeNames.of(TREE), {}, "both", compact=True)
        keep_learning(policy)
        shares = []
        for _ in range(6):
            unseen = decided = 0
            for graph in graphs:
                schedule = make_schedule(graph, policy)
                check_schedule(graph, schedule)
                unseen, decided = unseen + policy.unseen, decided + policy.decided
            shares.append(Fraction(unseen, decided))
        runs.append((shares, [rows_of(policy.tables[way]) for way in WAYS]))
    assert runs[0] == runs[1]
    shares = runs[0][0]
    assert shares[0] > Fraction(1, 10)
    assert shares[-1] < shares[0] / 10
    policy.learner = None
    known = [len(rows_of(policy.tables[way])) for way in WAYS]
    policy.schedule(merge_graphs([random_tree(seed) for seed in range(900, 960)]))
    assert [len(rows_of(policy.tables[way])) for way in WAYS] == known


def test_a_machine_that_keeps_learning_takes_in_new_types() -> None:
    policy = Fsm(Machine("sort", True), TypeNames.of(NamedTypes(("b", "a"))), {})
    keep_learning(policy)
    graph = random_dag(3, n_nodes=50)
    for _ in range(8):
        check_schedule(graph, policy.schedule(graph))
    assert policy.types.names == ("b", "a", "c", "d")
    assert policy.tables["forward"].values.shape[1] == 4
    assert policy.unseen == 0


def test_only_a_machine_can_keep_learning() -> None:
    with pytest.raises(PolicyError, match=r"must be a state machine .* got 'score'"):
        keep_learning(policies.get("score"))


def test_what_it_does_is_what_its_choices_say() -> None:
    """Every visited state is listed with the type that runs there, or counted as unseen."""
    graphs = [merge_graphs([random_tree(10 * i + j) for j in range(6)]) for i in range(4)]
    policy = learn(graphs[:2], episodes=100)
    assert isinstance(policy, Fsm)
    for way in WAYS:
        listed = {choice.state: choice.type_name for choice in policy.choices(way)}
        walk = policy.follow(way, map(policy.to_known, graphs))
        decided = {state: kind for state, kind in walk.runs.items() if state not in walk.unseen}
        assert decided
        assert decided.items() <= listed.items()
        assert walk.unseen == walk.visits.keys() - listed.keys()
        assert walk.moves.total() == walk.visits.total() - len(graphs)
        assert walk.visits.total() >= sum(map(min_batches, graphs))


def test_an_empty_graph_has_no_batch() -> None:
    assert len(untaught("both", compact=True).schedule(merge_graphs([], LETTERS))) == 0
    assert len(untaught().schedule(chain("a", "b"))) == 2
