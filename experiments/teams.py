"""Long-lived groups of processes that take turns: shared code of several experiments.

A `Team` of n processes has an object in each, whose methods all processes of the team call at once; idle teams wait for
a message and compute nothing. `Trainer` and `TorchTrainer` are such objects: they train on the first mini-batches of
the data, in order, and plan every step.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.workload import load_workload, record
from autobatch.distributed.shares import costs_of
from autobatch.errors import AutobatchError
from digest import ROOT
from harness import find_data, load_sst_or_listops

DATA = {"tree-lstm": "sst", "lattice-lstm": "lattice"}
WARM_UP = 2
LEARNING_RATE = 1e-4
PLANNING = ("lookup", "merge", "rewrite", "schedule", "layout", "place")
STAGES = ("divide", "planning", "forward", "backward", "wait", "reduce", "optimizer", "around")
"""The stages of a step: dividing the mini-batch into shares, those of `last.ms`, the optimizer's step, and the rest."""

Step = Mapping[str, float]
"""Seconds of a step, and of its stages."""


class Team:
    """Several processes of a process group of `torch.distributed`, or a single process.

    Args:
        n: number of processes.
        make: makes the object of a process, given its rank, n and `given`; all are pickled.
    """

    def __init__(self, n: int, make: Callable[..., Any], *given: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.size = n
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._members = []
        for rank in range(n):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there, rank, n, store, make, given), daemon=True)
            process.start()
            there.close()
            self._members.append((process, here))
        self.answers()

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        for process, connection in self._members:
            connection.close()
            process.join(10)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()

    def begin(self, method: str, *given: Any) -> None:
        """Let all processes start a call of a method of their objects."""
        for _, connection in self._members:
            connection.send((method, given))

    def answers(self) -> list[Any]:
        """Return each process's result of the method that was started.

        Raises:
            AutobatchError: the method failed in a process, or that process has ended.
        """
        found = []
        for rank, (_, connection) in enumerate(self._members):
            try:
                is_well, answer = connection.recv()
            except EOFError:
                is_well, answer = False, "it has ended"
            if not is_well:
                raise AutobatchError(f"process {rank} of {self.size} failed: {answer}")
            found.append(answer)
        return found

    def call(self, method: str, *given: Any) -> list[Any]:
        """Call a method in all processes at once, and wait."""
        self.begin(method, *given)
        return self.answers()


def _work(connection: Any, rank: int, n: int, store: str, make: Callable[..., Any], given: Sequence[Any]) -> None:
    """Run the loop of a team's process."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    try:
        if n > 1:
            distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
        worker = make(rank, n, *given)
        connection.send((True, None))
        while True:
            method, arguments = connection.recv()
            connection.send((True, getattr(worker, method)(*arguments)))
    except EOFError:
        pass
    except Exception:
        connection.send((False, traceback.format_exc()))
    sys.stdout.flush()
    os._exit(0)  # do not wait for the others to leave the group


class Trainer:
    """Trains a model of the package, on real data if it exists beside the checkout, else on drawn data.

    It is one of n processes, which join a group of `ab.distributed`.
    """

    def __init__(self, rank: int, n: int, model: str, dim: int, size: int, minibatches: int, seed: int) -> None:
        workload = load_workload(model, find_data(DATA.get(model, "none")), dim, seed)
        self.loss = workload.batched("loss", "auto", "cpu", plan_cache=0)
        self.module = workload.model
        self.optimizer = ab.optim.Adam(workload.model, lr=LEARNING_RATE)
        self.size, self.stack = size, ExitStack()
        self.joined = self.stack.enter_context(ab.distributed.group()) if n > 1 else None
        self.graphs = record(self.loss, workload.up_to(size * minibatches))
        self.costs = costs_of(self.graphs)
        for _ in range(WARM_UP):
            self.turn()

    def turn(self) -> list[Step]:
        """Train on all mini-batches once."""
        if self.joined is not None:
            self.joined.gather(None)  # so that all start together
        shares = ab.distributed.shares(self.graphs, self.size, cost=self.costs)
        steps = list[Step]()
        start = perf_counter()
        for share in shares:
            divided = perf_counter()
            _, grads = self.loss.value_and_grad(share)
            computed = perf_counter()
            self.optimizer.step(grads)
            end = perf_counter()
            timings = {"step": end - start, "divide": divided - start, "optimizer": end - computed}
            steps.append(stages_of(timings, {name: ms / 1e3 for name, ms in self.loss.last.ms.items()}))
            start = perf_counter()
        return steps

    def time_alone(self, positions: Sequence[Sequence[int]]) -> list[float]:
        """Return the seconds of `value_and_grad` for each list of positions, in this process alone."""
        seconds = []
        for some in positions:
            graphs = [self.graphs[k] for k in some]
            start = perf_counter()
            self.loss.value_and_grad(graphs)
            seconds.append(perf_counter() - start)
        return seconds


class TorchTrainer:
    """Trains a Tree-LSTM of PyTorch modules batched by autobatch; a group wraps it in DistributedDataParallel."""

    def __init__(self, rank: int, n: int, dim: int, size: int, minibatches: int, seed: int) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        import autobatch.torch as abt

        sys.path.insert(0, str(ROOT / "tests"))
        from helpers.models.torch_modules import TreeLSTM

        class Batched(TreeLSTM):
            """The Tree-LSTM, with its batched function as `forward`, where wrappers look for it."""

            @partial(abt.batched, plan_cache=0)
            def forward(self, tree: Any) -> Any:
                """Compute the loss of a tree."""
                return self.loss(tree)

        torch.manual_seed(seed)
        data = load_sst_or_listops(seed)
        module = Batched(data.sizes["n_words"], dim, data.sizes["n_classes"])
        trees = data.train[: size * minibatches]
        self.rank, self.n, self.size = rank, n, size
        self.graphs = module.forward.record_all(trees)
        self.model: Any = DistributedDataParallel(module) if n > 1 else module
        self.optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
        for _ in range(WARM_UP):
            self.turn()

    def turn(self) -> list[Step]:
        """Train on all mini-batches once; gradients are exchanged while backward runs."""
        from torch import distributed

        if self.n > 1:
            distributed.barrier()
        steps = list[Step]()
        for batch in ab.minibatches(self.graphs, self.size):
            times = [perf_counter()]
            self.optimizer.zero_grad()
            loss = self.model(batch[self.rank :: self.n]).mean()
            times.append(perf_counter())
            loss.backward()
            times.append(perf_counter())
            self.optimizer.step()
            times.append(perf_counter())
            timings = dict(zip(("forward", "backward", "optimizer"), np.diff(times).tolist(), strict=True))
            steps.append({"step": times[-1] - times[0], **timings})
        return steps


def stages_of(timings: dict[str, float], of_call: Mapping[str, float]) -> Step:
    """Join the times around a call with those that it has reported."""
    found = dict.fromkeys(STAGES, 0.0) | timings
    for stage, seconds in of_call.items():
        name = "planning" if stage in PLANNING else "backward" if stage == "weights" else stage
        found[name if name in STAGES else "around"] += seconds
    found["around"] += found["step"] - sum(found[stage] for stage in STAGES)
    return found


def race(teams: Mapping[str, Team], turns: int) -> dict[str, list[list[list[Step]]]]:
    """Let teams train by turns, in an order drawn for each turn. Return, by team: turns, processes, steps."""
    rng = np.random.default_rng(0)
    found: dict[str, list[list[list[Step]]]] = {name: [] for name in teams}
    for _ in range(turns):
        for name in rng.permutation([*teams]).tolist():
            found[name].append(teams[name].call("turn"))
    return found


def step_seconds(turn: Sequence[Sequence[Step]]) -> float:
    """Return the seconds per step of a turn: the mean over its steps, in the slowest process."""
    return max(fmean(step["step"] for step in steps) for steps in turn)


def stage_seconds(turns: Sequence[Sequence[Sequence[Step]]]) -> dict[str, float]:
    """Return the seconds of each stage, which do not overlap: means over steps and processes, medians over turns."""
    stages = [stage for stage in turns[0][0][0] if stage != "step"]
    return {stage: median(fmean(step[stage] for steps in turn for step in steps) for turn in turns) for stage in stages}
