"""Question: does recording the next mini-batch beside the computation of this one pay, in a thread or in a process?

A Tree-LSTM trains on trees that are recorded afresh, after an untimed round. Ways: each mini-batch recorded when it is
needed; `loss.prefetch`; a forked process that records and sends arrays; and, what none can beat, recorded once. In a
second table every instance is waited for, as for a file. Each way runs all mini-batches in a round; ratios are those
of medians.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import autobatch as ab
from autobatch.cli.results import format_table
from autobatch.graph.build import merge_graphs
from autobatch.graph.graph import Graph
from autobatch.models.tree_lstm import TreeLSTM
from harness import load_sst_or_listops, medians, name_of, run, take_turns
from records import Findings, Settings

WAYS = ("when needed", "thread", "process", "recorded once")


@dataclass(frozen=True)
class Config(Settings):
    """Mini-batches are the first ones, in file order."""

    dims: tuple[int, ...] = (64, 256)
    batch_sizes: tuple[int, ...] = (64, 256)
    n_trees: int = 1536
    wait_us: int = 200
    """Waited for each instance, in the second table."""
    repeats: int = 5


class Training:
    """A model in training, and its data, with the ways to get the next mini-batch."""

    def __init__(self, config: Config, dim: int, batch_size: int, wait_us: int) -> None:
        data = load_sst_or_listops(config.seed)
        self.model = TreeLSTM(dim=dim, rng=np.random.default_rng(config.seed), **data.sizes)
        self.seconds = wait_us / 1e6
        self.loss = ab.batched(self.read_and_measure, module=self.model, plan_cache=0)
        self.optimizer = ab.optim.Adam(self.model, lr=1e-3)
        self.batches = list(ab.minibatches(data.train[: config.n_trees], batch_size))
        self.recorded = [self.loss.record_all(batch) for batch in self.batches]

    def read_and_measure(self, tree: Any) -> Any:
        """The model's loss, after as long as reading the tree would take."""
        if self.seconds:
            time.sleep(self.seconds)
        return self.model.loss(tree)

    def take_steps(self, batches: Any, loss: ab.Batched) -> None:
        """Train on mini-batches as they come."""
        for batch in batches:
            _, grads = loss.value_and_grad(batch)
            self.optimizer.step(grads)

    def ways(self) -> dict[str, Callable[[], None]]:
        """What takes a step on every mini-batch, by name."""
        return {
            "when needed": lambda: self.take_steps(self.batches, self.loss),
            "thread": lambda: self.take_steps(self.loss.prefetch(self.batches), self.loss),
            "process": lambda: self.take_steps(self.from_a_process(), self.loss),
            "recorded once": lambda: self.take_steps(self.recorded, self.loss),
        }

    def from_a_process(self) -> Iterator[list[Graph]]:
        """Mini-batches that a forked process records: it knows all types already, so numbers mean the same here."""
        types = self.recorded[0][0].types
        here, there = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            here.close()
            self._send(there)
        there.close()
        for _ in self.batches:
            words, floats, structures, keys = here.recv()
            yield [Graph(words, floats, types, structures, keys)]
        here.close()
        os.waitpid(child, 0)

    def _send(self, there: Connection) -> None:
        """Record and send all mini-batches, as one graph each; ends the process."""
        for batch in self.batches:
            graph = merge_graphs(self.loss.record_all(batch))
            there.send((graph.words, graph.floats, graph.structures, graph.keys))
        os._exit(0)


def measure(config: Config) -> Findings:
    """Train in all ways in turn, at all sizes."""
    seconds: dict[str, list[float]] = {}
    rows, figures = [], dict[str, Any]()
    for wait_us, dim, batch_size in itertools.product((0, config.wait_us), config.dims, config.batch_sizes):
        what = f"dim {dim}, batch {batch_size}, wait {wait_us} us"
        times = take_turns(Training(config, dim, batch_size, wait_us).ways(), config.repeats)
        seconds |= {f"{what}: {way}": times[way] for way in WAYS}
        needed = medians(times)["when needed"]
        ratios = {way: round(needed / median, 3) for way, median in medians(times).items()}
        figures[what] = ratios
        rows.append((what, *(f"{ratios[way]:.2f}" for way in WAYS)))
    name = name_of(load_sst_or_listops(config.seed))
    title = f"{name}, {config.n_trees} trees a round; speed as a multiple of recording when needed\n\n"
    return Findings(seconds, {"data": name, "speed": figures}, title + format_table(("training", *WAYS), rows))


if __name__ == "__main__":
    run(Config(), measure)
