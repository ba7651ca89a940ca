"""`autobatch policy`: learn what decides which nodes run together; look at it, measure it, compare two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast, get_args

import click
import numpy as np

from autobatch import policies
from autobatch.cli import options
from autobatch.cli.progress import show_progress
from autobatch.cli.results import describe_run, format_table, open_json
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.errors import DataError, PolicyError
from autobatch.graph import Graph
from autobatch.policies.deep import DeepLearning
from autobatch.policies.directed import Directed, Direction
from autobatch.policies.encoding import ENCODINGS
from autobatch.policies.evolution import Evolution
from autobatch.policies.fsm import Fsm, Way
from autobatch.policies.learning import ALGORITHMS, describe_progress, learn
from autobatch.policies.policy_file import load
from autobatch.policies.portrait import Choice, draw_machine, list_choices, ways_of
from autobatch.policies.qlearning import REWARDS, Progress, QLearning
from autobatch.policies.rules import Score
from autobatch.schedule import Policy, make_schedule, min_batches

RIVALS = ("score+both+compact", "agenda")
file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
minibatches_option = click.option(
    "--minibatches",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How many mini-batches.",
)


@click.group()
def policy() -> None:
    """Learn batching policies, and look at them.

    \b
    Example:
      autobatch policy learn tree-lstm --out tree.policy.json
      autobatch policy show tree.policy.json
      autobatch policy eval tree.policy.json tree-lstm
      autobatch train tree-lstm --policy tree.policy.json
    """


@policy.command("learn")
@options.model_argument
@options.data_option
@options.dim_option
@options.batch_size_option
@minibatches_option
@click.option(
    "--held-out",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many further mini-batches decide which of the policies met on the way is the best.",
)
@click.option(
    "--algorithm",
    type=click.Choice([*ALGORITHMS]),
    default="q",
    show_default=True,
    help="; ".join(f"{name}: {algorithm.summary}" for name, algorithm in ALGORITHMS.items()) + ".",
)
@click.option(
    "--encoding",
    type=click.Choice(ENCODINGS),
    default="sort",
    show_default=True,
    help="q: what a state says of the ready nodes: their types, and the most frequent one, or all in order.",
)
@click.option(
    "--critical/--no-critical", default=True, show_default=True, help="q: a state says which types are critical."
)
@click.option(
    "--mask/--no-mask", default=True, show_default=True, help="q: only critical types run, where one is ready."
)
@click.option(
    "--reward",
    type=click.Choice([reward for reward in REWARDS if reward != "time"]),
    default="critical",
    show_default=True,
    help="q, dqn, ppo: what learning maximizes.",
)
@click.option(
    "--direction",
    type=click.Choice(get_args(Direction)),
    default="both",
    show_default=True,
    help="Plan from the inputs, from the outputs, or both and keep the better schedule.",
)
@click.option("--compact/--no-compact", default=True, show_default=True, help="Delete superfluous batches.")
@click.option(
    "--episodes",
    metavar="N",
    type=click.IntRange(min=1),
    default=QLearning.episodes,
    show_default=True,
    help="q: at most so many in each direction.",
)
@click.option("--steps", metavar="N", type=click.IntRange(min=1), help="dqn, ppo: batches run while learning.")
@click.option("--generations", metavar="N", type=click.IntRange(min=1), help="es: how often the weights move.")
@options.seed_option
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the policy.  [default: MODEL.policy.json]",
)
@click.pass_context
def learn_command(
    ctx: click.Context,
    /,
    model: str,
    data: str | None,
    dim: int,
    batch_size: int,
    minibatches: int,
    held_out: int,
    algorithm: str,
    direction: str,
    compact: bool,
    seed: int,
    out: Path | None,
    **learning: Any,
) -> None:
    """Learn a policy for MODEL on mini-batches, and write it to a file.

    MODEL is a name that `autobatch models` lists, or package.module:Class. The mini-batches are the first, in the order
    of the data's files. The file is a policy for every command that takes one: --policy FILE; with --policy "FILE or
    score" the rule `score` decides where the file or the model is refused.

    \b
    What ED-Batch (arXiv:2302.03851) published is learned by
      autobatch policy learn MODEL --no-critical --no-mask --reward published --direction forward --no-compact
    """
    out = out or Path(re.sub(r"[^\w.-]", "_", model) + ".policy.json")
    if not out.parent.is_dir():
        raise PolicyError(f"cannot save policy {str(out)!r}: there is no folder {str(out.parent)!r}; make it first.")
    own = _options_of(ctx, algorithm, learning)
    workload = load_workload(model, data, dim, seed)
    graphs = _take(workload, 0, minibatches + held_out, batch_size)
    last: list[Progress] = []
    start = perf_counter()
    with show_progress(_count_measurements(algorithm, own, direction)) as progress:

        def tell(measured: Progress) -> None:
            last[:] = [measured]
            progress.advance(f"learning {model}", describe_progress(measured))

        learned = learn(
            graphs[:minibatches], algorithm, held_out=graphs[minibatches:], direction=cast(Direction, direction),
            compact=compact, seed=seed, on_progress=tell, **own,
        )  # fmt: skip
    learned.about |= {
        "algorithm": algorithm, "model": workload.spec.name, "data": workload.dataset.name, "batch_size": batch_size,
        "instances": len(graphs) * batch_size,
    }  # fmt: skip
    learned.save(out)
    click.echo(f"{model}, {workload.dataset.name}: learned {learned.name} in {perf_counter() - start:.1f} s")
    click.echo(format_table(_EVAL_HEADER, [_row(measure(p, graphs[:minibatches])) for p in _with_rivals(learned)]))
    click.echo(f"These are means over the {minibatches} mini-batches learned from; the policy is in {out}.")


@policy.command("show")
@file_argument
@click.argument("model", metavar="[MODEL]", required=False)
@options.data_option
@options.dim_option
@options.batch_size_option
@minibatches_option
@options.seed_option
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the machine as it runs on mini-batches of MODEL, to a file that ends in .png, or in .dot for Graphviz.",
)
def show(
    file: Path,
    model: str | None,
    data: str | None,
    dim: int,
    batch_size: int,
    minibatches: int,
    seed: int,
    plot: Path | None,
) -> None:
    """Print the policy in FILE: what it runs in each state.

    States are written as the machine sees them: ready types, those with the most ready nodes first ("a > b") or marked
    ("a*"), and ! behind critical ones.
    """
    shown = load(file)
    if plot is not None and (model is None or not isinstance(shown, Fsm)):
        raise DataError(
            f"cannot draw {str(file)!r} to {str(plot)!r}: a drawing shows a state machine at work; give the file of "
            f"one, and the MODEL to run it on."
        )
    click.echo("\n".join(_describe(shown)))
    if plot is not None and model is not None and isinstance(shown, Fsm):
        draw_machine(shown, _take(load_workload(model, data, dim, seed), 0, minibatches, batch_size), plot)
        click.echo(f"\nThe drawing is in {plot}.")


@policy.command("eval")
@file_argument
@options.model_argument
@options.data_option
@options.dim_option
@options.batch_size_option
@minibatches_option
@click.option(
    "--skip",
    metavar="N",
    type=click.IntRange(min=0),
    help="Leave out so many instances at the beginning.  [default: those that the policy was learned from]",
)
@options.seed_option
@options.json_option
def evaluate_command(
    file: Path,
    model: str,
    data: str | None,
    dim: int,
    batch_size: int,
    minibatches: int,
    skip: int | None,
    seed: int,
    json_path: Path | None,
) -> None:
    """Count the batches of the policy in FILE on mini-batches of MODEL that it was not learned from.

    Beside it stand other policies, and the lower bound that no schedule can go below.
    """
    measured = load(file)
    workload = load_workload(model, data, dim, seed)
    if skip is None:
        learned_here = (workload.spec.name, workload.dataset.name) == tuple(map(measured.about.get, ("model", "data")))
        skip = int(measured.about.get("instances", 0)) if learned_here else 0
    graphs = _take(workload, skip, minibatches, batch_size)
    with open_json(json_path) as results:
        measurements = [measure(rival, graphs) for rival in _with_rivals(measured)]
        click.echo(f"{model}, {workload.dataset.name}; {minibatches} mini-batches of {batch_size} from item {skip}\n")
        click.echo(format_table(_EVAL_HEADER, [_row(measurement) for measurement in measurements]))
        for m in measurements:
            described = describe_run(workload, batch_size, m.policy, "none", "plan")
            figures = {"batches": m.batches, "lower_bound": m.bound, "unseen_share": m.unseen_share, "plan_ms": m.ms}
            results.write({**described, **figures, "minibatches": minibatches, "skip": skip})


@policy.command("diff")
@click.argument("one", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("other", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
def diff(one: Path, other: Path) -> None:
    """Show in which states two policies run something else."""
    first, second = load(one), load(other)
    if isinstance(first, Score) and isinstance(second, Score):
        click.echo("\n".join(_diff_weights(first, second)))
        return
    if not isinstance(first, Fsm) or not isinstance(second, Fsm) or _sees(first) != _sees(second):
        raise PolicyError(
            f"cannot compare {str(one)!r} with {str(other)!r}: one is {_kind(first)}, the other {_kind(second)}; give "
            f"policies whose states say the same."
        )
    for way in ways_of(first):
        if way in ways_of(second):
            click.echo("\n".join(_diff_choices(way, list_choices(first, way), list_choices(second, way))))


@dataclass(frozen=True)
class Measurement:
    """Means over mini-batches of one policy; `unseen_share` is None for those that have learned no states."""

    policy: str
    batches: float
    bound: float
    unseen_share: float | None
    ms: float


def measure(measured: Policy, graphs: Sequence[Graph]) -> Measurement:
    """Plan each mini-batch."""
    measured.schedule(graphs[0])  # compiles
    batches, shares, start = [], [], perf_counter()
    for graph in graphs:
        batches.append(make_schedule(graph, measured).n_batches)
        shares.append(getattr(measured, "unseen_share", None))
    ms = 1e3 * (perf_counter() - start) / len(graphs)
    known = [share for share in shares if share is not None]
    bound = float(np.mean([min_batches(graph) for graph in graphs]))
    return Measurement(measured.name, float(np.mean(batches)), bound, float(np.mean(known)) if known else None, ms)


_EVAL_HEADER = ("policy", "batches", "lower bound", "gap", "states unseen", "ms to plan")


def _row(m: Measurement) -> tuple[str, ...]:
    unseen = "" if m.unseen_share is None else f"{m.unseen_share:.1%}"
    gap = f"{m.batches / m.bound - 1:.1%}" if m.bound else ""
    return m.policy, f"{m.batches:,.1f}", f"{m.bound:,.1f}", gap, unseen, f"{m.ms:,.2f}"


def _with_rivals(measured: Directed) -> list[Policy]:
    return [measured, *(policies.get(name) for name in RIVALS if name != measured.name)]


def _take(workload: Workload, skip: int, minibatches: int, batch_size: int) -> list[Graph]:
    """Merge mini-batches of the instances in file order."""
    instances = workload.first(skip + minibatches * batch_size)[skip:]
    loss = workload.batched("loss", "agenda", "reference")
    graphs = record(loss, instances)
    return [loss.merged(graphs[first : first + batch_size]) for first in range(0, len(graphs), batch_size)]


def _options_of(ctx: click.Context, algorithm: str, learning: dict[str, Any]) -> dict[str, Any]:
    """Pick the options that the algorithm has; those given that it lacks are refused."""
    for name in learning.keys() - set(ALGORITHMS[algorithm].options):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise PolicyError(f"learning a policy: algorithm {algorithm!r} has no option --{name}; leave it out.")
    return {name: learning[name] for name in ALGORITHMS[algorithm].options if learning[name] is not None}


def _count_measurements(algorithm: str, own: dict[str, Any], direction: str) -> int:
    """Say how often learning tells how it goes, if it does not end early."""
    if algorithm == "q":
        return int(-(-own["episodes"] // QLearning.evaluate_every) * (2 if direction == "both" else 1))
    if algorithm == "es":
        return int(own.get("generations", Evolution.generations))
    return int(own.get("steps", DeepLearning.steps)) // DeepLearning.measure_every + 2


def _sees(shown: Fsm) -> tuple[str, bool]:
    return shown.machine.encoding, shown.machine.critical


def _kind(shown: Directed) -> str:
    if isinstance(shown, Score):
        return "a rule with weights"
    if not isinstance(shown, Fsm):
        return f"a {shown.rule}"
    machine = shown.machine
    critical = " with the critical types" if machine.critical else ""
    mask = ", running only critical ones where it can" if machine.mask else ""
    return f"a state machine that sees {machine.encoding}{critical}{mask}"


def _describe(shown: Directed) -> list[str]:
    """Write a policy in lines."""
    lines = [f"{shown.name}: {_kind(shown)}"]
    curves = shown.about.get("curves", {})
    settings = shown.about.get("settings", {})
    facts = {name: fact for name, fact in shown.about.items() if name not in ("curve", "curves", "settings")}
    facts |= {name: settings[name] for name in ("reward", "episodes", "steps", "generations") if name in settings}
    if facts:
        lines.append("learned with " + ", ".join(f"{name} {fact}" for name, fact in facts.items()))
    if isinstance(shown, Score):
        return lines + [f"  {name:<9} {weight:g}" for name, weight in shown.weights._asdict().items()]
    if not isinstance(shown, Fsm):
        return lines
    lines += [f"  {way}: {describe_progress(Progress(**curve[-1]))}" for way, curve in curves.items() if curve]
    lines += ["types"] + [f"  {outline}" for outline in shown.types.outlines]
    for way in ways_of(shown):
        choices = list_choices(shown, way)
        lines.append(f"{way}, {len(choices)} states")
        rows = [(c.state, c.kind, f"{c.value:.3f}", f"{c.updates}") for c in choices]
        lines += [f"  {line}" for line in format_table(("state", "runs", "value", "updates"), rows).splitlines()]
    return lines


def _diff_weights(one: Score, other: Score) -> list[str]:
    pairs = zip(one.weights._asdict().items(), other.weights, strict=True)
    return [f"{name}: {a:g} and {b:g}" for (name, a), b in pairs if a != b] or ["The weights are the same."]


def _diff_choices(way: Way, one: Sequence[Choice], other: Sequence[Choice]) -> list[str]:
    first, second = ({choice.state: choice.kind for choice in choices} for choices in (one, other))
    both = first.keys() & second.keys()
    rows = [(state, kind, second[state]) for state, kind in first.items() if state in both and second[state] != kind]
    lines = [
        f"{way}: {len(both)} states in both, {len(rows)} of them decided differently; {len(first) - len(both)} only in "
        f"the first, {len(second) - len(both)} only in the second"
    ]
    if rows:
        table = format_table(("state", "first", "second"), rows)
        lines += [f"  {line}" for line in table.splitlines()]
    return lines
