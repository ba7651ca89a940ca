"""Test that schedules made on a device equal those of the compiled simulator exactly, in any order of threads."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch._native import Course, plan_by_machine
from autobatch.compiler.cuda.resources import COMPILER, GPUS
from autobatch.devices.device import Device
from autobatch.errors import PolicyError
from autobatch.graph.build import merge_graphs
from autobatch.graph.dag import Dag, reverse, to_dag
from autobatch.graph.graph import NamedTypes
from autobatch.policies.fsm.device_simulator import (
    CHANCES,
    SOURCE,
    DeviceSimulator,
    Episodes,
    Played,
    rank_all,
    rank_tried,
)
from autobatch.policies.fsm.machine import Machine
from autobatch.policies.fsm.practice import run_episode
from autobatch.policies.fsm.qlearning import QLearning
from autobatch.policies.fsm.table import ENCODINGS, Table, make_table, with_room
from autobatch.policies.rules.rules import LEARNED
from helpers.checkers.machine_tables import rows_of, states_by_hand
from helpers.programs.graphs import random_dag, random_tree
from helpers.runs.gpu_compiler import needs_compiler
from helpers.runs.ways import each
from host_device import HostDevice

MACHINES = [
    Machine(encoding, critical, mask) for encoding in ENCODINGS for critical, mask in ((False, False), (True, True))
]
UNMASKED = Machine("sort", critical=True)


def some_dags(n_types: int, sizes: Sequence[int], seed: int = 0) -> list[Dag]:
    """Draw DAGs of random types, much wider than those of models; every second one is reversed."""
    types = NamedTypes(tuple(f"t{kind}" for kind in range(n_types)))
    dags = [to_dag(random_dag(seed + i, n_nodes=size, types=types)) for i, size in enumerate(sizes)]
    return [reverse(dag) if i % 2 else dag for i, dag in enumerate(dags)]


def learned(dags: Sequence[Dag], machine: Machine, seed: int = 0) -> Table:
    n_types = dags[0].n_types
    table, rng = make_table(n_types, machine.width(n_types)), np.random.default_rng(seed)
    for episode in range(6):
        dag = dags[episode % len(dags)]
        table = with_room(table, dag.type_id.size)
        run_episode(Course(dag), table, machine.rules(), QLearning().rules(), 0.3, rng)
    return table


@each("n_types", [1, 3, 8, 31, 32, 33, 50])
def test_schedules_are_those_of_the_processor(device: Device, n_types: int) -> None:
    """All machines and DAGs run in one launch. States are known, or the rule decides now and then."""
    dags = some_dags(n_types, [150, 0, 1, 90, 40, 300, 7])
    tables = [learned(dags[:4], machine) for machine in MACHINES]
    played = DeviceSimulator(dags, device).run([*map(rank_tried, MACHINES, tables)], steps=True)
    n_unseen = 0
    for run, n_batches in enumerate(played.n_batches):
        machine, table, dag = MACHINES[run // 7], tables[run // 7], dags[run % 7]
        (batch_type, batch_ptr, _), unseen = plan_by_machine(dag, table, machine.rules(), LEARNED)
        assert (n_batches, played.n_unseen[run]) == (batch_type.size, unseen)
        _, kinds, n_ready, _ = played.steps[run, :n_batches].T
        assert kinds.tolist() == batch_type.tolist()
        assert n_ready.tolist() == np.diff(batch_ptr).tolist()
        n_unseen += unseen
    if n_types > 1:
        assert 0 < n_unseen < played.n_batches.sum()
    assert played.n_fresh == 0
    counted = DeviceSimulator(dags, device).run([rank_tried(MACHINES[2], tables[2])])
    assert counted.n_batches.tolist() == played.n_batches[2 * 7 : 3 * 7].tolist()
    assert counted.steps.size == 0


def test_wide_mini_batches_are_scheduled(device: Device) -> None:
    """Batches of more nodes than a warp has lanes, and nodes with hundreds of readers."""
    trees = to_dag(merge_graphs([random_tree(seed, n_leaves=12) for seed in range(60)]))
    kinds, ends, sources = (np.array(ints, np.int32) for ints in ([0] * 300 + [1], [0] * 301 + [300], range(300)))
    star = Dag(kinds, ends, sources, 5)
    dags = [trees, reverse(trees), star, reverse(star)]
    machine = Machine("sort", critical=True, mask=True)
    table = learned(dags, machine)
    played = DeviceSimulator(dags, device).run([rank_tried(machine, table)], steps=True)
    wanted = [plan_by_machine(dag, table, machine.rules(), LEARNED)[0] for dag in dags]
    assert played.n_batches.tolist() == [batch_type.size for batch_type, _, _ in wanted]
    assert played.steps[:, 0, 2].tolist() == [batch_ptr[1] for _, batch_ptr, _ in wanted]
    assert played.steps[0, 0, 2] == 60 * 12


def draw(seed: int, episode: int, t: int, kind: int) -> int:
    """Draw a 32-bit random number by the definition."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    state = seed
    for number in (episode, t, kind):
        state = mix((state + number * 0x9E3779B97F4A7C15) % 2**64)
    return state >> 32


def choose_by_hand(table: Table, state: list[int], may_run: list[int], optimism: bool) -> int:
    """Return the type of the highest value, preferring low types and, without optimism, tried ones."""
    values, updates = rows_of(table).get(tuple(state), ([0.0] * 99, [0] * 99))
    tried = [kind for kind in may_run if updates[kind]]
    return max(tried if tried and not optimism else may_run, key=lambda kind: (values[kind], -kind))


@each("optimism, machine", [(True, UNMASKED), (False, UNMASKED), (True, MACHINES[1]), (False, MACHINES[5])])
def test_an_episode_is_the_one_defined(device: Device, optimism: bool, machine: Machine) -> None:
    """States, types that may run, random numbers and choices are recomputed. Half of the choices are explored."""
    dags, seed, first = some_dags(4, [40, 25, 30], seed=5), 2**62 + 12345, 7
    table = learned(dags[:1], machine)
    chances = np.array([0, CHANCES // 2, CHANCES, CHANCES // 2], np.int64)
    played = DeviceSimulator(dags, device).play(rank_all(machine, table, optimism), Episodes(seed, first, chances))
    n_explored = n_unknown = 0
    for run, n_batches in enumerate(played.n_batches):
        dag, steps = dags[(first + run) % 3], played.steps[run, :n_batches].tolist()
        sequence = [kind for _, kind, _, _ in steps]
        states = states_by_hand(dag, sequence, machine.encoding, machine.critical)
        flags = states_by_hand(dag, sequence, "base", True)
        for t, (number, kind, _, is_critical) in enumerate(steps):
            ready, critical = (np.flatnonzero(half).tolist() for half in np.reshape(flags[t], (2, 4)))
            may_run = critical if machine.mask and critical else ready
            explores = draw(seed, first + run, t, 4) < chances[run]
            by_chance = min(may_run, key=lambda kind: draw(seed, first + run, t, kind))
            assert kind == (by_chance if explores else choose_by_hand(table, states[t], may_run, optimism))
            assert (table.states[number] if number >= 0 else played.fresh[-1 - number]).tolist() == states[t]
            assert is_critical == (kind in critical)
            n_explored, n_unknown = n_explored + explores, n_unknown + (number < 0)
    assert 0 < n_explored < played.n_batches.sum()
    assert played.n_fresh == len(played.fresh) == n_unknown


@pytest.mark.cases(1)
@each("n_types", [2, 5, 40])
def test_frontiers_are_those_of_the_processor(device: Device, n_types: int) -> None:
    """Checked with the published rewards of the same plan on the processor."""
    dags = some_dags(n_types, [120, 200, 1])
    ranked = rank_all(UNMASKED, learned(dags, UNMASKED), optimism=True)
    episodes = Episodes(3, 0, np.full(6, CHANCES, np.int64))
    played = DeviceSimulator(dags, device, frontiers=True).play(ranked, episodes)
    for run, n_batches in enumerate(played.n_batches):
        _, kinds, n_ready, frontier = played.steps[run, :n_batches].T
        course = Course(dags[run % 3])
        rules, table = QLearning(reward="published").rules(), make_table(n_types, 2 * n_types, 200)
        run_episode(course, table, UNMASKED.rules(), rules, 0.0, np.random.default_rng(0), kinds.copy())
        *_, rewards = course.episode()
        assert (n_ready / frontier - 1).tolist() == rewards.tolist()


def resolved(played: Played) -> list[Any]:
    """Return the steps of all runs, with the states themselves instead of references."""
    fresh = played.fresh.tolist()
    return [
        [(number if number >= 0 else fresh[-1 - number], *rest) for number, *rest in steps[:n_batches].tolist()]
        for n_batches, steps in zip(played.n_batches, played.steps, strict=True)
    ]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_order_of_threads_does_not_matter() -> None:
    dags = some_dags(5, [60, 80, 30])
    ranked = rank_all(UNMASKED, learned(dags[:1], UNMASKED), optimism=False)
    episodes = Episodes(1, 0, np.full(9, CHANCES // 3, np.int64))
    found = [
        resolved(DeviceSimulator(dags, HostDevice(seed), frontiers=True).play(ranked, episodes)) for seed in range(6)
    ]
    assert found == found[:1] * 6


class Tight(HostDevice):
    """A device with little memory."""

    most_shared_bytes = 2000

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        if size > 1000:
            raise MemoryError
        return super().empty(size, dtype)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"20 types .* 4088 bytes of shared memory, .* 2000"):
        DeviceSimulator(some_dags(20, [5]), Tight())
    for n_nodes, n_bytes in ((600, 600 * 3), (300, 4 * 300)):  # the chains ahead, and the scratch of four warps
        with pytest.raises(PolicyError, match=f"{4 * n_bytes} more bytes .* up to {n_nodes} nodes"):
            DeviceSimulator(some_dags(3, [n_nodes]), Tight()).run([rank_tried(UNMASKED, make_table(3, 6, room=4))] * 4)


@pytest.mark.slow
@needs_compiler
def test_the_kernel_compiles_for_gpus_and_fits_in_registers(tmp_path: Path) -> None:
    targets = [f"-gencode=arch={gpu.replace('sm', 'compute')},code={gpu}" for gpu in GPUS]
    options = ["-std=c++17", "-Werror=all-warnings", "-Xptxas=-v", "-x", "cu", "-fatbin", "-o", str(tmp_path / "x")]
    done = subprocess.run([COMPILER, *targets, *options, str(SOURCE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert spilled == [("0", "0")] * len(GPUS)
