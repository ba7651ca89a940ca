"""The demonstration behind `make demo`: a Tree-LSTM learns list operations, batched; then policies are compared.

It learns while a helper compiles. The comparison measures time, so it waits for compiled code.

python -m autobatch.cli.training.demo
"""

from __future__ import annotations

import time

import click
import numpy as np

from autobatch.cli.ending import run_process
from autobatch.cli.measuring.bench import format_timings
from autobatch.cli.measuring.racing import race
from autobatch.cli.progress import show_compilation, show_progress
from autobatch.cli.results import format_table
from autobatch.cli.threads import DEFAULT_THREADS, use_threads
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
TRAINING_S = 40.0  # after the first epoch; then no further epoch begins, however slow the machine
N_ANSWERS = 5
LONGEST_ANSWER = 60  # characters
POLICIES = ("unbatched", "depth", "agenda", "score")
REPEATS = 5
MOST_STATES = 6  # of the machine that is learned, shown


@show_compilation()
def demo() -> None:
    """Train, show answers, compare the policies."""
    use_threads(DEFAULT_THREADS)
    click.echo("A Tree-LSTM learns the values of expressions such as [MAX 2 9 [MIN 4 7] 0].")
    click.echo("The model is written for one tree; autobatch runs it on mini-batches of trees of every shape.\n")
    workload = load_workload("tree-lstm", "listops", DIM, seed=0)
    click.echo(summarise(workload))
    train(workload)
    click.echo("\nExpressions that it has not seen:\n")
    click.echo(answer(workload))
    click.echo(f"\nOne step of this training under several policies; mini-batches of {BATCH_SIZE} trees:\n")
    compare(workload)
    click.echo(f"\nTrees are easy. The same for a lattice LSTM, mini-batches of {BATCH_SIZE} sentences:\n")
    compare(load_workload("lattice-lstm", None, DIM, seed=0))
    click.echo(
        "\nA compiled batch costs some microseconds on the processor: batching pays, and the number of batches decides"
    )
    click.echo("little. It decides more where launches cost time, as on GPUs.")
    click.echo(
        "\ndepth runs all nodes of one depth and type, agenda the type whose remaining nodes are the least deep,"
    )
    click.echo("score the type with the highest score of a rule. No schedule has fewer batches than the lower bound.")


def train(workload: Workload) -> None:
    """Train with progress, in a bounded time; the clock starts at the end of the first epoch."""
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
    """Lay out some development expressions with their values and what the model says."""
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
    """Learn a state machine on the first mini-batch, and show it beside other policies, with what it learned."""
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
    click.echo(f"\n{learned.name} is a state machine, learned just now by Q-learning: {len(choices)} states, such as")
    rows = [(choice.state, choice.type_name) for choice in choices[:MOST_STATES]]
    click.echo(format_table(("types that are ready", "runs"), rows))


if __name__ == "__main__":
    run_process(demo)
