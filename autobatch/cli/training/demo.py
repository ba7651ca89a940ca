"""The demo of `make demo`: train a Tree-LSTM on list operations, then compare batching policies.

Training starts before all code is compiled. The comparison measures time, so it waits for compiled code.

python -m autobatch.cli.training.demo
"""

from __future__ import annotations

import time

import click
import numpy as np

from autobatch.cli.bench import format_timings
from autobatch.cli.ending import run_process
from autobatch.cli.machine import DEFAULT_THREADS, use_threads
from autobatch.cli.progress import show_compilation, show_progress
from autobatch.cli.racing import race
from autobatch.cli.results import format_table
from autobatch.cli.training.fitting import Fitting
from autobatch.cli.training.train import summarise
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.models.data.listops import to_brackets
from autobatch.policies.fsm.machine import Fsm
from autobatch.schedule import Policy
from autobatch.system.background import waiting_for_code

DIM = 64
BATCH_SIZE = 64
EPOCHS = 24
LR = 3e-3
TRAINING_S = 40.0  # seconds after the first epoch until no further epoch begins, for slow machines
N_ANSWERS = 5
LONGEST_ANSWER = 60  # characters
POLICIES = ("unbatched", "depth", "agenda", "score")
REPEATS = 5
MOST_STATES = 6  # states of the learned machine to show


@show_compilation()
def demo() -> None:
    """Train, show answers, and compare policies."""
    use_threads(DEFAULT_THREADS)
    click.echo("A Tree-LSTM learns the values of expressions such as [MAX 2 9 [MIN 4 7] 0].")
    click.echo("The model is written for one tree; autobatch runs it on mini-batches of trees of every shape.\n")
    workload = load_workload("tree-lstm", "listops", DIM, seed=0)
    click.echo(summarise(workload))
    train(workload)
    click.echo("\nUnseen expressions:\n")
    click.echo(answer(workload))
    click.echo(f"\nA training step under several policies, mini-batches of {BATCH_SIZE} trees:\n")
    compare(workload)
    click.echo(f"\nTrees are easy. The same for a lattice LSTM, mini-batches of {BATCH_SIZE} sentences:\n")
    compare(load_workload("lattice-lstm", None, DIM, seed=0))
    click.echo(
        "\nOn the CPU, a compiled batch costs a few microseconds: batching pays off, but the number of batches matters"
    )
    click.echo("little. It matters more where launches are slow, as on GPUs.")
    click.echo(
        "\ndepth runs all nodes of one depth and type, agenda the type whose remaining nodes are the least deep,"
    )
    click.echo("score the type with the highest score of a rule. No schedule has fewer batches than the lower bound.")


def train(workload: Workload) -> None:
    """Train with progress; begin no epoch later than `TRAINING_S` after the first one."""
    start: float | None = None
    fitting = Fitting(workload, policy="auto", backend="auto", batch_size=BATCH_SIZE, lr=LR)
    with show_progress(EPOCHS * fitting.steps_per_epoch) as progress:
        for epoch in fitting.epochs(EPOCHS, progress):
            progress.say(epoch.line())
            start = start or time.monotonic()
            if epoch.number > 1 and time.monotonic() - start > TRAINING_S:
                progress.say(f"(no further epochs after {TRAINING_S:.0f} seconds)")
                break


def answer(workload: Workload) -> str:
    """Format a table of some development expressions, their values and the model's answers."""
    vocabulary, trees = workload.dataset.vocabularies["words"], workload.dataset.dev
    expressions = [to_brackets(vocabulary.decode(tree)) for tree in trees]
    shown = [number for number, text in enumerate(expressions) if len(text) <= LONGEST_ANSWER][:N_ANSWERS]
    root_logits, _ = workload.batched("scores", "auto", "auto")([trees[number] for number in shown])
    answers = np.argmax(root_logits, axis=1)
    rows = [
        (expressions[number], str(trees[number].label), str(said)) for number, said in zip(shown, answers, strict=True)
    ]
    return format_table(("expression", "value", "model says"), rows)


@waiting_for_code()
def compare(workload: Workload) -> None:
    """Learn a state machine on the first mini-batch, compare it with other policies, and show some states."""
    loss = workload.batched("loss", "agenda", "auto")
    graphs = record(loss, workload.first(BATCH_SIZE))
    learned = loss.learn_policy([graphs], direction="forward", compact=False, rival=False)
    assert isinstance(learned, Fsm), "the default algorithm learns a state machine"
    policies: list[str | Policy] = [*POLICIES, learned]
    with show_progress((REPEATS + 1) * len(policies)) as progress:
        timings = race(
            workload, policies, "auto", "train", BATCH_SIZE, n_minibatches=1, n_repeats=REPEATS,
            step_done=lambda policy: progress.advance("timing", policy),
        )  # fmt: skip
    click.echo(format_timings(timings))
    choices = learned.choices(learned.ways[0])
    click.echo(f"\n{learned.name} is a state machine just learned by Q-learning, with {len(choices)} states, such as")
    rows = [(choice.state, choice.type_name) for choice in choices[:MOST_STATES]]
    click.echo(format_table(("ready types", "runs"), rows))


if __name__ == "__main__":
    run_process(demo)
