"""Measure the nodes per second that the simulator schedules on the device and on one core, and compare the schedules.

There are two kinds of work: schedules by a learned machine, and episodes of Q-learning, which also learn from them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from autobatch._native import plan_by_machine
from autobatch.cli.gpu.check import Check, Result
from autobatch.cli.policy_evaluate import take_minibatches
from autobatch.cli.workload import load_workload
from autobatch.graph.dag import Dag, to_dag
from autobatch.policies.fsm.device_simulator import KIND, DeviceSimulator, Played, rank_tried
from autobatch.policies.fsm.machine import Machine
from autobatch.policies.fsm.practice import OnDevice, OnProcessor, Task
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.fsm.table import Table, copy_table, make_table
from autobatch.policies.rules.rules import LEARNED
from harness import take_turns

MODELS = ("lattice-lstm", "tree-lstm-2type", "tree-lstm")
MACHINE = Machine("sort", critical=True, mask=True)
SETTINGS = QLearning(reward="critical", optimism=False)
LESSON = 50  # episodes, one after the other, after which the machine knows most states


def time_simulators(check: Check) -> Result:
    """Time mini-batches of each model, from small to large, many at a time; compare all schedules."""
    columns = ("model", "instances", "nodes", "work", "at once", "Mnodes/s, device", "Mnodes/s, one core", "times")
    result = Result("simulated schedules and episodes", columns)
    sizes = check.choose([(32, 4096), (256, 4096), (1, 16384), (32, 256)], [(3, 8)])
    settings = [(model, *size) for size in sizes for model in check.choose(MODELS, MODELS[:2])]
    check.measure_each(result, settings, partial(time_setting, check, result))
    return result


def time_setting(check: Check, result: Result, model: str, size: int, at_once: int) -> None:
    """Time a number of schedules, and of episodes, of a model's mini-batches."""
    dags = draw_dags(check, model, size, check.choose(16, 2))
    n_types = dags[0].n_types
    task = Task(dags, [], MACHINE, SETTINGS.rules(), SETTINGS.exploration())
    here, there = OnProcessor(task, [check.seed]), OnDevice(task, [check.seed], check.device)
    table = here.learn(make_table(n_types, MACHINE.width(n_types)), LESSON)
    simulator, machines = DeviceSimulator(dags, check.device), [rank_tried(MACHINE, table)] * (at_once // len(dags))
    result.failures.extend(compare(f"{model}, {size} instances", dags, table, simulator.run(machines, steps=True)))
    ways: dict[str, Any] = {
        "schedules, device": lambda: simulator.run(machines),
        "schedules, one core": lambda: [plan_by_machine(dag, table, MACHINE.rules(), LEARNED) for dag in dags],
        "episodes, device": lambda: there.learn(copy_table(table), at_once),
        "episodes, one core": lambda: here.learn(copy_table(table), len(dags)),
    }
    times = take_turns(ways, check.choose(7, 1))
    nodes = sum(dag.type_id.size for dag in dags)
    n_scheduled = {"schedules": len(machines) * len(dags), "episodes": at_once}
    for work, n in n_scheduled.items():
        timings = {place: times[f"{work}, {place}"] for place in ("device", "one core")}
        rates = [
            nodes * n / len(dags) / statistics.median(timings["device"]),
            nodes / statistics.median(timings["one core"]),
        ]
        result.add(model, size, nodes / len(dags), work, n, *(rate / 1e6 for rate in rates), rates[0] / rates[1])
        result.seconds |= {f"{model}, {size}, {n}, {work}, {place}": own for place, own in timings.items()}


def draw_dags(check: Check, model: str, size: int, n: int) -> list[Dag]:
    """Return the first mini-batches of a model's data."""
    graphs = take_minibatches(load_workload(model, None, check.choose(64, 5), check.seed), 0, n, size)
    return [to_dag(graph)._replace(n_types=len(graphs[0].types.names)) for graph in graphs]


def compare(about: str, dags: Sequence[Dag], table: Table, played: Played) -> list[str]:
    """List the schedules of the device that differ from those of the processor."""
    failures = []
    wanted = [plan_by_machine(dag, table, MACHINE.rules(), LEARNED) for dag in dags]
    for run, n_batches in enumerate(played.n_batches):
        (kinds, _, _), unseen = wanted[run % len(dags)]
        same = played.steps[run, :n_batches, KIND].tolist() == kinds.tolist()
        if not same or (n_batches, played.n_unseen[run]) != (kinds.size, unseen):
            failures.append(f"{about}: run {run} has {n_batches} batches, and the processor's {kinds.size}, or others")
    return failures
