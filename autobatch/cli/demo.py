"""The demonstration behind `make demo`: a Tree-LSTM learns list operations, batched; then the policies are compared.

python -m autobatch.cli.demo
"""

from __future__ import annotations

import sys
import time

import click

from autobatch.cli.bench import format_timings
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.fitting import Fitting
from autobatch.cli.progress import show_progress
from autobatch.cli.racing import race
from autobatch.cli.train import summarise
from autobatch.cli.workload import Workload, load_workload

DIM = 64
BATCH_SIZE = 64
EPOCHS = 10
LR = 3e-3
TRAINING_S = 75.0  # no further epoch begins after that, however slow the machine
POLICIES = ("unbatched", "depth", "agenda")
MINIBATCHES = 2
REPEATS = 3


def demo() -> None:
    """Train, show an answer, compare."""
    workload = load_workload("tree-lstm", "listops", DIM, seed=0)
    click.echo("A Tree-LSTM learns the values of expressions such as [MAX 2 9 [MIN 4 7] 0].")
    click.echo("The model is written for one tree; autobatch runs it on mini-batches of trees of every shape.\n")
    click.echo(summarise(workload))
    _train(workload)
    _compare(workload)


def _train(workload: Workload) -> None:
    start = time.monotonic()
    fitting = Fitting(workload, policy="auto", backend="auto", batch_size=BATCH_SIZE, lr=LR)
    with show_progress(EPOCHS * fitting.steps_per_epoch) as progress:
        for epoch in fitting.epochs(EPOCHS, progress):
            progress.say(epoch.line())
            if time.monotonic() - start > TRAINING_S:
                progress.say(f"(stopped after {TRAINING_S:.0f} seconds)")
                break


def _compare(workload: Workload) -> None:
    click.echo(f"\nThe same training step, batched in three ways; per mini-batch of {BATCH_SIZE} trees:\n")
    with show_progress((REPEATS + 1) * MINIBATCHES * len(POLICIES)) as progress:
        timings = race(
            workload, POLICIES, "auto", "train", BATCH_SIZE, MINIBATCHES, REPEATS,
            step_done=lambda policy: progress.advance("timing", policy),
        )  # fmt: skip
    click.echo(format_timings(timings))
    click.echo("\nunbatched: one node at a time.  depth: all nodes of one depth and type.  agenda: the ready type that")
    click.echo("waits least.  lower bound: no schedule has fewer batches.")


if __name__ == "__main__":
    sys.exit(run_to_the_end(demo))
