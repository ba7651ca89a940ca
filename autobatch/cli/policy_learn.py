"""`autobatch policy learn`: learn a policy on mini-batches of a model, or for any model on generated graphs.

Q-learning is part of the package; the other algorithms are in the folder `experiments/learning` of a checkout.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import click
from click.core import ParameterSource

from autobatch.cli import experiment, options
from autobatch.cli.on_ray import as_done, ray_option, require_ray
from autobatch.cli.policy_evaluate import measure, minibatches_option, tabulate, take_minibatches, with_others
from autobatch.cli.progress import show_progress
from autobatch.cli.words import FILE, FOLDER, model_argument, require_picture, require_place
from autobatch.cli.workload import load_workload
from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.practice import REWARDS
from autobatch.policies.fsm.qlearning import Learned, Lesson, QLearning, Report
from autobatch.policies.fsm.table import ENCODINGS
from autobatch.policies.learning import describe_progress, learn
from autobatch.policies.rules.directed import Directed, Direction

FAMILIES = "families"
ELSEWHERE = "learning"
"""The experiment with the other algorithms."""
LESSON = ("data", "dim", "batch_size", "minibatches", "held_out")
"""Options that select the mini-batches to learn from."""
LEARNING = "learning a policy"
LENGTHS = ("episodes", "steps", "generations")
"""Options for the length of learning; an algorithm has one of them."""


@dataclass(frozen=True)
class Algorithm:
    """A learning algorithm.

    Attributes:
        summary: result and method in a few words.
        options: names of its options.
        learn: takes the graphs of mini-batches, `held_out`, direction, compact, seed, on_progress and its options; or
            no graphs, to learn on generated ones. None for algorithms of `ELSEWHERE`.
        count: returns the number of progress reports, unless learning ends early; takes direction and its options.
    """

    summary: str
    options: tuple[str, ...]
    learn: Callable[..., Directed] | None = None
    count: Callable[..., int] | None = None

    def by(self, learn: Callable[..., Directed], count: Callable[..., int]) -> Algorithm:
        """Return a copy with an implementation."""
        return replace(self, learn=learn, count=count)


def count_rollouts(direction: Direction, episodes: int, rival: bool, **others: Any) -> int:
    """Return the number of progress reports of Q-learning, unless it ends early."""
    n_tables = (2 if direction == "both" else 1) * (2 if rival else 1)
    return -(-episodes // QLearning.evaluate_every) * n_tables


ALGORITHMS = {
    "q": Algorithm(
        "a state machine by Q-learning",
        ("encoding", "critical", "mask", "reward", "rival", "episodes"), learn, count_rollouts,
    ),
    "dqn": Algorithm("a network by DQN", ("reward", "steps", "log_folder", "plot")),
    "ppo": Algorithm("a network by PPO", ("reward", "steps", "log_folder", "plot")),
    "es": Algorithm("the weights of a rule by an evolution strategy", ("generations",)),
}  # fmt: skip


@click.command("learn")
@model_argument(also=(FAMILIES,))
@options.data_option
@options.dim_option
@options.batch_size_option
@minibatches_option
@options.count_option("--held-out", 0, "Number of further mini-batches used to select the best policy.", least=0)
@options.choice_option(
    "--algorithm",
    [*ALGORITHMS],
    "q",
    "; ".join(f"{name}: {algorithm.summary}" for name, algorithm in ALGORITHMS.items()) + ".",
)
@options.choice_option(
    "--encoding",
    ENCODINGS,
    "sort",
    "q: how a state encodes the ready nodes: by their types (base), also by the most frequent type (max), or by types "
    "sorted by frequency (sort).",
)
@click.option(
    "--critical/--no-critical", default=True, show_default=True, help="q: include in a state which types are critical."
)
@click.option(
    "--mask/--no-mask", default=True, show_default=True, help="q: run only critical types when any are ready."
)
@click.option(
    "--rival/--no-rival",
    default=True,
    show_default=True,
    help="q: also learn the published machine, and use the shorter of the two schedules.",
)
@options.choice_option("--reward", REWARDS, "critical", "q, dqn, ppo: the reward.")
@options.choice_option(
    "--direction",
    get_args(Direction),
    "both",
    "Schedule from the inputs, from the outputs, or both ways and keep the better schedule.",
)
@click.option("--compact/--no-compact", default=True, show_default=True, help="Remove superfluous batches.")
@options.count_option("--episodes", QLearning.episodes, "q: maximum number of episodes per direction.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), hidden=True)  # deprecated
@options.count_option("--steps", None, "dqn, ppo: number of steps in the environment, one per batch.")
@options.count_option("--generations", None, "es: number of weight updates.")
@click.option(
    "--log-folder",
    metavar="DIR",
    type=FOLDER,
    help="dqn, ppo: write a log for TensorBoard.",
)
@click.option(
    "--plot",
    metavar="FILE",
    type=FILE,
    help="dqn, ppo: draw the learning curve to a PNG file.",
)
@options.seed_option
@ray_option("q: learn the tables of the directions and of the rival in Ray workers.")
@click.option(
    "--out",
    metavar="FILE",
    type=FILE,
    help="File for the policy.  [default: MODEL.policy.json]",
)
@click.pass_context
def learn_command(
    ctx: click.Context,
    /,
    model: str,
    algorithm: str,
    direction: Direction,
    compact: bool,
    seed: int,
    out: Path | None,
    plot: Path | None,
    ray: str | None,
    device: str | None,
    **chosen: Any,
) -> int:
    """Learn a policy for MODEL on mini-batches, and write it to a file.

    MODEL is a name from `autobatch models`, or package.module:Class. The mini-batches are the first in file order.
    Other commands take the file as --policy FILE, or as --policy "FILE or score" to fall back to the rule `score` if
    the file does not fit the model.

    In place of MODEL, "families" stands for generated graphs of many kinds: a policy that es, ppo or dqn learns on them
    works for any model. --episodes is the length of learning for q, --steps for ppo and dqn, --generations for es.
    es, ppo and dqn are experiments and need a checkout of the repository.

    With --ray, workers learn the tables; if one dies, another one learns its table again. The file is the same.

    \b
    To learn the policy that ED-Batch (arXiv:2302.03851) published:
      autobatch policy learn MODEL --no-critical --no-mask --reward published \\
          --direction forward --no-compact --no-rival
    To learn the weights that are included for score and network:
      autobatch policy learn families --algorithm es
      autobatch policy learn families --algorithm ppo
    """
    out = out or Path(re.sub(r"[^\w.-]", "_", model) + ".policy.json")
    require_place(out, "save policy")
    if model == FAMILIES:
        _require_families(algorithm)
    lesson = {name: chosen.pop(name) for name in LESSON}
    own = _options_of(ctx, algorithm, {**chosen, "plot": plot})
    if device is not None:
        click.echo("autobatch: --device will be removed in 0.4; the CPU learns policies.", err=True)
    if ray is not None:
        _require_tables(algorithm)
    if plot is not None:
        require_picture(plot, "draw the learning curve to", ())
    if model == FAMILIES:
        _refuse(ctx, LESSON, f"generated graphs ({FAMILIES}) have no option")
    known = ALGORITHMS[algorithm]
    if known.learn is None or known.count is None:
        return run_elsewhere(ctx)
    graphs: list[Graph] = []
    about = {"algorithm": algorithm, "model": model}
    if model != FAMILIES:
        graphs, more = _take_lesson(model, seed, **lesson)
        about |= more
    start = perf_counter()
    with show_progress(known.count(direction=direction, **own)) as progress:
        terms: dict[str, Any] = {
            "direction": direction, "compact": compact, "seed": seed,
            "on_progress": lambda measured: progress.advance(f"learning {model}", describe_progress(measured)),
        }  # fmt: skip
        if ray is not None:
            terms["each"] = partial(learn_on_ray, ray)
        n_seen = lesson["minibatches"]
        seen = {"graphs": graphs[:n_seen], "held_out": graphs[n_seen:]} if graphs else {}
        learned = known.learn(**seen, **terms, **own)
    learned.about |= about
    learned.save(out)
    source = f"{model}, {about['data']}" if graphs else model
    click.echo(f"{source}: learned {learned.name} in {perf_counter() - start:.1f} s")
    if not graphs:
        click.echo(f"Wrote the policy, which works for any model, to {out}.")
        return 0
    click.echo(tabulate([measure(policy, graphs[:n_seen]) for policy in with_others(learned)]))
    click.echo(f"Means over the {n_seen} mini-batches used for learning. Wrote the policy to {out}.")
    return 0


def learn_on_ray(
    address: str, learn: Callable[[Lesson, Report], Learned], lessons: Sequence[Lesson], report: Report
) -> list[Learned]:
    """Learn the lessons in Ray workers; progress is reported when a lesson is done."""
    found: dict[int, Learned] = {}
    for number, learned in as_done(_in_worker, [(learn, lesson) for lesson in lessons], address, LEARNING):
        found[number] = learned
        for progress in learned.curve:
            report(progress)
    return [found[number] for number in range(len(lessons))]


def _in_worker(learn: Callable[[Lesson, Report], Learned], lesson: Lesson) -> Learned:
    return learn(lesson, lambda progress: None)


def _require_tables(algorithm: str) -> None:
    """Raise an error unless tables are learned and Ray is installed."""
    if algorithm != "q":
        raise PolicyError(f"{LEARNING}: --ray needs --algorithm q, got --algorithm {algorithm}; leave one out.")
    require_ray(LEARNING)


def run_elsewhere(ctx: click.Context) -> int:
    """Run this command again with the algorithms of the checkout; return the exit status.

    Raises:
        DataError: autobatch does not run from a checkout.
    """
    experiment.list_experiments()
    return subprocess.run([sys.executable, experiment.FOLDER / ELSEWHERE, *_words(ctx)], check=False).returncode


def _words(ctx: click.Context) -> Iterator[str]:
    """Yield the words of the command line again."""
    for parameter in ctx.command.params:
        name, value = str(parameter.name), ctx.params[str(parameter.name)]
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if isinstance(parameter, click.Argument):
            yield str(value)
        elif isinstance(value, bool):
            yield (parameter.opts if value else parameter.secondary_opts)[0]
        else:
            yield from (parameter.opts[0], str(value))


def _require_families(algorithm: str) -> None:
    """Raise a PolicyError for an algorithm that needs the types of a model."""
    if algorithm == "q":
        able = {name: one.options for name, one in ALGORITHMS.items() if name != algorithm}
        ways = [
            f"--algorithm {name} (for --{length} N)"
            for name, own in able.items()
            for length in LENGTHS
            if length in own
        ]  # fmt: skip
        raise PolicyError(
            f"learning a policy on generated graphs: {algorithm!r} learns {ALGORITHMS[algorithm].summary} for the "
            f"types of one model; give {', '.join(ways[:-1])} or {ways[-1]}."
        )


def _take_lesson(
    model: str, seed: int, data: str | None, dim: int, batch_size: int, minibatches: int, held_out: int
) -> tuple[list[Graph], dict[str, Any]]:
    """Return merged mini-batches of a model, those to learn from before those held out, and their description."""
    workload = load_workload(model, data, dim, seed)
    graphs = take_minibatches(workload, 0, minibatches + held_out, batch_size)
    return graphs, {
        "model": workload.spec.name, "data": workload.dataset.name, "batch_size": batch_size,
        "instances": len(graphs) * batch_size,
    }  # fmt: skip


def _options_of(ctx: click.Context, algorithm: str, learning: dict[str, Any]) -> dict[str, Any]:
    """Select the algorithm's options; raise an error for options of other algorithms on the command line."""
    own = ALGORITHMS[algorithm].options
    known = ", ".join(f"--{name.replace('_', '-')}" for name in own)
    others = sorted(learning.keys() - set(own))
    _refuse(ctx, others, f"algorithm {algorithm!r} has no option", f"its options are {known}")
    return {name: learning[name] for name in own if learning[name] is not None}


def _refuse(ctx: click.Context, names: Sequence[str], why: str, remedy: str = "leave it out") -> None:
    """Raise a PolicyError if one of these options was given on the command line."""
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise PolicyError(f"learning a policy: {why} --{name.replace('_', '-')}; {remedy}.")
