"""Test that eight threads that plan different mini-batches at once make the same plans as one thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from autobatch import _native
from autobatch.graph.dag import to_dag
from autobatch.policies.fsm.machine import MachineRules
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.fsm.table import make_table
from autobatch.policies.rules.network import learned_network
from autobatch.policies.rules.rules import LEARNED
from helpers.programs.graphs import random_batch, random_dag, random_toys
from helpers.runs.entries import examples
from helpers.runs.golden import digest

N_THREADS = 8
MANY = [pytest.param(100, id="some"), pytest.param(10_000, id="many", marks=pytest.mark.slow)]


def plans_of(seed: int) -> str:
    """Digest the plans of a mini-batch by every planner, and the table learned from it."""
    dag = to_dag([random_batch(seed), random_dag(seed, 1 + seed % 200), random_toys(seed)][seed % 3])
    found: list[Any] = [_native.plan_by_rule(dag, (rule, 3, True, LEARNED)) for rule in range(5)]
    found.append(_native.plan_by_network(dag, learned_network()))
    table = make_table(dag.n_types, dag.n_types, dag.type_id.size)
    course, rules, nothing = _native.Course(dag), QLearning().rules(), np.zeros(0, np.int32)
    course.run(table, MachineRules(0, 0), rules, 0.5, np.random.PCG64(seed), nothing)
    found.append(_native.plan_by_machine(dag, table, MachineRules(0, 0), LEARNED)[0])
    sequence = found[0][0]
    found.append((_native.local_search(dag, np.tile(sequence, 2), 1 + seed, 5, 0.0),))
    for args in examples(seed % 4)["place_values"]:
        found.append(_native.place_values(*args))
    for args in examples(seed % 4)["plan_graphs"]:
        _, (words, floats, _, batches, parts, *_), *_ = _native.plan_graphs(*args)
        found.append((words, floats, *batches, *parts))
    return digest(*[part for parts in found for part in parts], *table)


@pytest.mark.parametrize("n", MANY)
def test_threads_plan_as_one_does(n: int) -> None:
    alone = [plans_of(seed) for seed in range(n)]
    with ThreadPoolExecutor(N_THREADS) as pool:
        assert [*pool.map(plans_of, reversed(range(n)))] == alone[::-1]


@pytest.mark.parametrize("n", [pytest.param(40, id="some"), pytest.param(2000, id="many", marks=pytest.mark.slow)])
def test_threads_that_race_for_a_job_get_the_plan_once(n: int) -> None:
    """Several threads run a job, and one reads it at the same time; the result is that of `plan_graphs`."""
    with ThreadPoolExecutor(N_THREADS) as pool:
        for k in range(n):
            for args in examples(k % 4)["plan_graphs"]:
                job = _native.PlanJob(*args)
                racing = [pool.submit(job.run) for _ in range(k % 4)]
                reading = [pool.submit(job.result) for _ in range(2)]
                for one in racing:
                    one.result()
                read = [one.result() for one in reading if one.exception() is None]
                refused = [str(one.exception()) for one in reading if one.exception() is not None]
                assert refused == ["the result of a PlanJob must be read only once"]
                (_, found, is_whole, _), (_, expected, was_whole, _) = read[0], _native.plan_graphs(*args)
                assert is_whole == was_whole
                assert found[2] == expected[2]
                assert digest_of_plan(found) == digest_of_plan(expected)


def digest_of_plan(planned: tuple[Any, ...]) -> str:
    words, floats, _, batches, parts, *_ = planned
    return digest(words, floats, *batches, *parts)
