"""`autobatch policy learn`: learn a policy on mini-batches of a model, or for any model on generated graphs.

Q-learning is part of the package; what learns in other ways is run by the folder `experiments/learning` of a checkout.
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
from autobatch.cli.places import FILE, FOLDER, require_picture, require_place
from autobatch.cli.policies.evaluate import measure, minibatches_option, tabulate, take_minibatches, with_others
from autobatch.cli.progress import show_progress
from autobatch.cli.words import model_argument
from autobatch.cli.workload import load_workload
from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.policies.fsm.encoding import ENCODINGS
from autobatch.policies.fsm.qlearning import DEVICES, DeviceName, Learned, Lesson, QLearning, Report
from autobatch.policies.fsm.rewards import REWARDS
from autobatch.policies.learning import EVALUATE_EVERY, describe_progress, learn
from autobatch.policies.rules.directed import Directed, Direction

FAMILIES = "families"
ELSEWHERE = "learning"
"""The folder of experiments that learns by other algorithms."""
LESSON = ("data", "dim", "batch_size", "minibatches", "held_out")
"""Options that say which mini-batches of a model to learn from."""
LEARNING = "learning a policy"
LENGTHS = ("episodes", "steps", "generations")
"""Options that say how long to learn, of which an algorithm has one."""


@dataclass(frozen=True)
class Algorithm:
    """A way to learn.

    Attributes:
        summary: what it learns, in a few words.
        options: the names of those that it has.
        learn: takes the graphs of mini-batches, `held_out`, direction, compact, seed, on_progress and its options; or
            no graphs, to learn on generated ones. None for what is run by `ELSEWHERE`.
        count: how often learning reports progress, if it does not end early; takes direction and its options.
    """

    summary: str
    options: tuple[str, ...]
    learn: Callable[..., Directed] | None = None
    count: Callable[..., int] | None = None

    def by(self, learn: Callable[..., Directed], count: Callable[..., int]) -> Algorithm:
        """Make this algorithm as one that is known how to do."""
        return replace(self, learn=learn, count=count)


def count_rollouts(direction: Direction, episodes: int, device: DeviceName, rival: bool, **others: Any) -> int:
    """Count the rollouts of Q-learning."""
    n_tables = (2 if direction == "both" else 1) * (2 if rival else 1)
    return -(-episodes // EVALUATE_EVERY[device]) * n_tables


ALGORITHMS = {
    "q": Algorithm(
        "a state machine by Q-learning",
        ("encoding", "critical", "mask", "reward", "rival", "episodes", "device"), learn, count_rollouts,
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
@options.count_option(
    "--held-out", 0, "Further mini-batches, on which the best of the policies met while learning is chosen.", least=0
)
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
    "q: what a state says of the ready nodes: their types, and the most frequent one, or all in order.",
)
@click.option(
    "--critical/--no-critical", default=True, show_default=True, help="q: a state says which types are critical."
)
@click.option(
    "--mask/--no-mask", default=True, show_default=True, help="q: only critical types run, where one is ready."
)
@click.option(
    "--rival/--no-rival",
    default=True,
    show_default=True,
    help="q: learn the published machine too, plan with both, and keep the shorter schedule.",
)
@options.choice_option("--reward", REWARDS, "critical", "q, dqn, ppo: what learning maximizes.")
@options.choice_option(
    "--direction",
    get_args(Direction),
    "both",
    "Plan from the inputs, from the outputs, or both and keep the better schedule.",
)
@click.option("--compact/--no-compact", default=True, show_default=True, help="Delete superfluous batches.")
@options.count_option("--episodes", QLearning.episodes, "q: at most so many in each direction.")
@options.choice_option(
    "--device", DEVICES, "cpu", "q: play episodes on the processor, one after the other, or many at once on a GPU."
)
@options.count_option("--steps", None, "dqn, ppo: batches run while learning.")
@options.count_option("--generations", None, "es: how often the weights change.")
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
    help="dqn, ppo: draw the learning curve, as PNG.",
)
@options.seed_option
@ray_option("q, on the processor: learn the tables, one for each direction and for the rival, in workers of Ray.")
@click.option(
    "--out",
    metavar="FILE",
    type=FILE,
    help="Where to write the policy.  [default: MODEL.policy.json]",
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
    **chosen: Any,
) -> int:
    """Learn a policy for MODEL on mini-batches, and write it to a file.

    MODEL is a name that `autobatch models` lists, or package.module:Class. The mini-batches are the first, in the order
    of the data's files. The file is a policy for every command that takes one: --policy FILE; with --policy "FILE or
    score" the rule `score` decides where the file or the model is refused.

    In place of MODEL, "families" stands for generated graphs of many kinds: what es, ppo or dqn learns on them serves
    any model. --episodes says how long q learns, --steps how long ppo and dqn do, --generations how long es does. These
    three are experiments: they need a checkout of the repository.

    With --ray the file is the same, byte for byte: each table is learned by one worker, and by another one from the
    beginning if that dies.

    \b
    What ED-Batch (arXiv:2302.03851) published is learned by
      autobatch policy learn MODEL --no-critical --no-mask --reward published \\
          --direction forward --no-compact --no-rival
    The weights of the rule score and the network that come with the package are learned by
      autobatch policy learn families --algorithm es
      autobatch policy learn families --algorithm ppo
    """
    out = out or Path(re.sub(r"[^\w.-]", "_", model) + ".policy.json")
    require_place(out, "save policy")
    if model == FAMILIES:
        _require_families(algorithm)
    lesson = {name: chosen.pop(name) for name in LESSON}
    own = _options_of(ctx, algorithm, {**chosen, "plot": plot})
    if ray is not None:
        _require_tables(algorithm, own)
    if plot is not None:
        require_picture(plot, "draw how learning went to", ())
    if model == FAMILIES:
        _refuse(ctx, LESSON, f"the graphs of {FAMILIES} are generated, so there is no option")
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
        click.echo(f"The policy, which serves any model, is in {out}.")
        return 0
    click.echo(tabulate([measure(policy, graphs[:n_seen]) for policy in with_others(learned)]))
    click.echo(f"These are means over the {n_seen} mini-batches learned from; the policy is in {out}.")
    return 0


def learn_on_ray(
    address: str, learn: Callable[[Lesson, Report], Learned], lessons: Sequence[Lesson], report: Report
) -> list[Learned]:
    """Do the lessons in workers of Ray; the rollouts of each are reported when it is done."""
    found: dict[int, Learned] = {}
    for number, learned in as_done(_in_worker, [(learn, lesson) for lesson in lessons], address, LEARNING):
        found[number] = learned
        for progress in learned.curve:
            report(progress)
    return [found[number] for number in range(len(lessons))]


def _in_worker(learn: Callable[[Lesson, Report], Learned], lesson: Lesson) -> Learned:
    return learn(lesson, lambda progress: None)


def _require_tables(algorithm: str, own: dict[str, Any]) -> None:
    """Refuse to learn on Ray what is no tables, or would share a GPU; or where there is no Ray."""
    if algorithm != "q" or own["device"] != "cpu":
        what = f"--algorithm {algorithm}" if algorithm != "q" else f"--device {own['device']}"
        raise PolicyError(
            f"{LEARNING}: --ray learns the tables of --algorithm q on processors, which {what} does not; leave one out."
        )
    require_ray(LEARNING)


def run_elsewhere(ctx: click.Context) -> int:
    """Run this command again where its algorithm is known, in a checkout; give the exit status.

    Raises:
        DataError: this is no checkout.
    """
    experiment.list_experiments()
    return subprocess.run([sys.executable, experiment.FOLDER / ELSEWHERE, *_words(ctx)], check=False).returncode


def _words(ctx: click.Context) -> Iterator[str]:
    """What was given on the command line, again."""
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
    """Refuse an algorithm that has to know the types."""
    if algorithm == "q":
        able = {name: one.options for name, one in ALGORITHMS.items() if name != algorithm}
        ways = [
            f"--algorithm {name} (for --{length} N)"
            for name, own in able.items()
            for length in LENGTHS
            if length in own
        ]  # fmt: skip
        raise PolicyError(
            f"learning a policy on generated graphs: {algorithm!r} learns {ALGORITHMS[algorithm].summary}, which "
            f"serves the types of one model only; give {', '.join(ways[:-1])} or {ways[-1]}."
        )


def _take_lesson(
    model: str, seed: int, data: str | None, dim: int, batch_size: int, minibatches: int, held_out: int
) -> tuple[list[Graph], dict[str, Any]]:
    """Merge the mini-batches of a model that are learned from, and then those held out; and say what they are."""
    workload = load_workload(model, data, dim, seed)
    graphs = take_minibatches(workload, 0, minibatches + held_out, batch_size)
    return graphs, {
        "model": workload.spec.name, "data": workload.dataset.name, "batch_size": batch_size,
        "instances": len(graphs) * batch_size,
    }  # fmt: skip


def _options_of(ctx: click.Context, algorithm: str, learning: dict[str, Any]) -> dict[str, Any]:
    """Pick the options that the algorithm has; those given that it lacks are refused."""
    own = ALGORITHMS[algorithm].options
    known = ", ".join(f"--{name.replace('_', '-')}" for name in own)
    others = sorted(learning.keys() - set(own))
    _refuse(ctx, others, f"algorithm {algorithm!r} has no option", f"leave it out, its options are {known}")
    return {name: learning[name] for name in own if learning[name] is not None}


def _refuse(ctx: click.Context, names: Sequence[str], why: str, remedy: str = "leave it out") -> None:
    """Refuse options that were given on the command line."""
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise PolicyError(f"learning a policy: {why} --{name.replace('_', '-')}; {remedy}.")
