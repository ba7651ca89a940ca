"""`autobatch policy`: learn, show, evaluate and compare batching policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from autobatch.cli import options
from autobatch.cli.policy_evaluate import (
    evaluate_command,
    file_argument,
    find_policy,
    minibatches_option,
    take_minibatches,
)
from autobatch.cli.policy_learn import learn_command
from autobatch.cli.results import format_table
from autobatch.cli.words import FILE, Commands, model_argument, require_picture
from autobatch.cli.workload import load_workload
from autobatch.errors import DataError, PolicyError
from autobatch.policies.fsm.drawing import draw_machine
from autobatch.policies.fsm.machine import Fsm, Way
from autobatch.policies.fsm.qlearning import Progress
from autobatch.policies.fsm.table import LISTED
from autobatch.policies.fsm.walk import Choice
from autobatch.policies.learning import describe_progress
from autobatch.policies.rules.directed import Directed
from autobatch.policies.rules.rules import Score


@click.group(cls=Commands)
def policy() -> None:
    """Learn, show, evaluate and compare batching policies.

    \b
    Example:
      autobatch policy learn tree-lstm --out tree.policy.json
      autobatch policy show tree.policy.json
      autobatch policy eval tree.policy.json tree-lstm
      autobatch train tree-lstm --policy tree.policy.json
    """


policy.add_command(learn_command)
policy.add_command(evaluate_command)


@policy.command("show")
@file_argument
@model_argument(metavar="[MODEL]", required=False)
@options.data_option
@options.dim_option
@options.batch_size_option
@minibatches_option
@options.seed_option
@click.option(
    "--plot",
    metavar="FILE",
    type=FILE,
    help="Draw the state machine, without its rival, on mini-batches of MODEL: its most visited states to a .png file, "
    "or all of them to a .dot file for Graphviz.",
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
    """Print the policy in FILE: the type that it runs in each state.

    FILE is a file from `autobatch policy learn`, or the name of a policy with weights, such as score. A state lists the
    types that have ready nodes; "a > b" means that a has at least as many as b. A type is critical if running it now
    lowers the bound on the remaining batches. MODEL, --data, --dim, --batch-size, --minibatches and --seed select the
    mini-batches of --plot, and are ignored without it. In Python, ab.policies.draw_machine draws a machine on your own
    graphs.

    \b
    Examples:
      autobatch policy show tree.policy.json
      autobatch policy show tree.policy.json tree-lstm --plot machine.png
    """
    shown = find_policy(file)
    if plot is not None and (model is None or not isinstance(shown, Fsm)):
        raise DataError(
            f"cannot draw {str(file)!r} to {str(plot)!r}: --plot needs the file of a state machine and a MODEL to run "
            f"it on, as in autobatch policy show FILE MODEL --plot {plot}; in Python, ab.policies.draw_machine draws "
            f"one on your own graphs."
        )
    if plot is not None and model is not None and isinstance(shown, Fsm):
        require_picture(plot, "draw", (".png", ".dot"))
        draw_machine(shown, take_minibatches(load_workload(model, data, dim, seed), 0, minibatches, batch_size), plot)
    click.echo("\n".join(_describe(shown)))
    if plot is not None:
        click.echo(f"\nWrote the drawing to {plot}.")


@policy.command("diff")
@click.argument("one", metavar="FILE", type=FILE)
@click.argument("other", metavar="FILE", type=FILE)
def diff(one: Path, other: Path) -> None:
    """Show the states in which two policies run different types.

    Each FILE is a file from `autobatch policy learn`, or the name of a policy with weights.
    """
    first, second = find_policy(one), find_policy(other)
    if isinstance(first, Score) and isinstance(second, Score):
        click.echo("\n".join(_diff_weights(first, second)))
        return
    if not isinstance(first, Fsm) or not isinstance(second, Fsm) or _list_encodings(first) != _list_encodings(second):
        raise PolicyError(
            f"cannot compare {str(one)!r} with {str(other)!r}: {_kind(first)} and {_kind(second)} have different "
            f"states; give policies with the same encoding of states."
        )
    for number, (a, b) in enumerate(zip(first.apart(), second.apart(), strict=True)):
        if number:
            click.echo(f"the rival: {_kind(a)}")
        for way in first.ways:
            if way in second.ways:
                click.echo("\n".join(_diff_choices(way, a.choices(way), b.choices(way))))


def _list_encodings(shown: Fsm) -> list[tuple[str, bool]]:
    return [(machine.encoding, machine.critical) for machine, _ in shown.machines]


def _kind(shown: Directed) -> str:
    if isinstance(shown, Score):
        return "a rule with weights"
    if not isinstance(shown, Fsm):
        return f"a {shown.rule}"
    return f"a state machine that {shown.machine.in_words()}"


def _describe(shown: Directed) -> list[str]:
    lines = [f"{shown.name}: {_kind(shown)}"]
    curves = shown.about.get("curves", {})
    settings = shown.about.get("settings", {})
    facts = {name: fact for name, fact in shown.about.items() if name not in ("curve", "curves", "settings", "rivals")}
    facts |= {name: settings[name] for name in ("reward", "episodes", "steps", "generations") if name in settings}
    if facts:
        lines.append("learned with " + ", ".join(f"{name} {fact}" for name, fact in facts.items()))
    if isinstance(shown, Score):
        return lines + [f"  {name:<9} {weight:g}" for name, weight in shown.weights._asdict().items()]
    if not isinstance(shown, Fsm):
        return lines
    lines += [f"  {way}: {describe_progress(Progress(**curve[-1]))}" for way, curve in curves.items() if curve]
    lines += ["types"] + [f"  {outline}" for outline in shown.types.outlines]
    first, *rivals = shown.apart()
    lines += _describe_states(first)
    for rival in rivals:
        lines += [f"rival, whose schedule is used if shorter: {_kind(rival)}"]
        lines += _describe_states(rival)
    return lines


def _describe_states(shown: Fsm) -> list[str]:
    lines = []
    for way in shown.ways:
        choices = shown.choices(way)
        lines.append(f"{way}, {len(choices)} states")
        rows = [(c.state, c.type_name, f"{c.value:.3f}", f"{c.updates}") for c in choices]
        header = (LISTED[shown.machine.encoding], "runs", "value", "updates")
        lines += [f"  {line}" for line in format_table(header, rows).splitlines()]
    return lines


def _diff_weights(one: Score, other: Score) -> list[str]:
    pairs = zip(one.weights._asdict().items(), other.weights, strict=True)
    return [f"{name}: {a:g} and {b:g}" for (name, a), b in pairs if a != b] or ["The weights are the same."]


def _diff_choices(way: Way, one: Sequence[Choice], other: Sequence[Choice]) -> list[str]:
    first, second = ({choice.state: choice.type_name for choice in choices} for choices in (one, other))
    both = first.keys() & second.keys()
    rows = [(state, kind, second[state]) for state, kind in first.items() if state in both and second[state] != kind]
    lines = [
        f"{way}: {len(both)} states in both, {len(rows)} with different types; {len(first) - len(both)} only in the "
        f"first, {len(second) - len(both)} only in the second"
    ]
    if rows:
        table = format_table(("state", "first", "second"), rows)
        lines += [f"  {line}" for line in table.splitlines()]
    return lines
