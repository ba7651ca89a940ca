"""`autobatch policy eval`: compare the number of batches of a policy with other policies and the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import click
import numpy as np

from autobatch import policies
from autobatch.cli import options
from autobatch.cli.results import describe_run, format_table, open_json
from autobatch.cli.words import FILE
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.policies.rules.directed import Directed
from autobatch.policies.rules.rules import with_origin
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import BasePolicy, min_batches

OTHERS = ("score+both+compact", "agenda")
file_argument = click.argument("file", metavar="FILE", type=FILE)
minibatches_option = options.count_option("--minibatches", 4, "Number of mini-batches.")


@click.command("eval")
@file_argument
@options.model_argument
@options.data_option
@options.dim_option
@options.batch_size_option
@minibatches_option
@options.count_option(
    "--skip",
    None,
    "Number of instances to skip at the start of the data.  [default: those used for learning]",
    least=0,
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
    """Evaluate the policy in FILE on unseen mini-batches of MODEL.

    FILE is a file from `autobatch policy learn`, or the name of a policy with weights, such as score. The table
    compares its number of batches with other policies and with a lower bound.
    """
    measured = find_policy(file)
    workload = load_workload(model, data, dim, seed)
    if skip is None:
        learned_here = (workload.spec.name, workload.dataset.name) == tuple(map(measured.about.get, ("model", "data")))
        skip = int(measured.about.get("instances", 0)) if learned_here else 0
    graphs = take_minibatches(workload, skip, minibatches, batch_size)
    with open_json(json_path) as results:
        measurements = [measure(other, graphs) for other in with_others(measured)]
        click.echo(f"{model}, {workload.dataset.name}; {minibatches} mini-batches of {batch_size} from item {skip}\n")
        click.echo(tabulate(measurements))
        for m in measurements:
            described = describe_run(workload, batch_size, m.policy, "none", "plan")
            figures = {"batches": m.batches, "lower_bound": m.bound, "unseen_share": m.unseen_share, "plan_ms": m.ms}
            results.write({**described, **figures, "minibatches": minibatches, "skip": skip})


def find_policy(file: Path) -> Directed:
    """Load a policy from a file, or make a policy with weights by its name.

    Raises:
        PolicyError: the file is invalid, or the policy of this name has no weights.
    """
    name = str(file)
    # "score+both" is the policy score with an option.
    if file.exists() or name.partition("+")[0] not in ("auto", *policies.names()):
        return policies.load(file)
    named = policies.get(name)
    if not isinstance(named, policies.Score | policies.Deep):
        raise PolicyError(
            f"policy must have weights or learned states, got the fixed rule {name!r}; to run it, use autobatch bench "
            f"or explain with --policy {name}."
        )
    return named


@dataclass(frozen=True)
class Measurement:
    """Means over mini-batches of one policy; `unseen_share` is None for policies without learned states."""

    policy: str
    batches: float
    bound: float
    unseen_share: float | None
    ms: float


def measure(measured: BasePolicy, graphs: Sequence[Graph]) -> Measurement:
    """Schedule each mini-batch with a policy."""
    measured.schedule(graphs[0])  # compiles
    batches, shares, start = [], [], perf_counter()
    for graph in graphs:
        batches.append(make_schedule(graph, measured).n_batches)
        shares.append(measured.unseen_share)
    ms = 1e3 * (perf_counter() - start) / len(graphs)
    known = [share for share in shares if share is not None]
    bound = float(np.mean([min_batches(graph) for graph in graphs]))
    return Measurement(measured.name, float(np.mean(batches)), bound, float(np.mean(known)) if known else None, ms)


def tabulate(measurements: Sequence[Measurement]) -> str:
    """Format a table of measurements."""
    return format_table(_HEADER, [_row(measurement) for measurement in measurements])


_HEADER = ("policy", "batches", "lower bound", "gap", "unseen states", "planning ms")


def _row(m: Measurement) -> tuple[str, ...]:
    unseen = "" if m.unseen_share is None else f"{m.unseen_share:.1%}"
    gap = f"{m.batches / m.bound - 1:.1%}" if m.bound else ""
    return with_origin(m.policy), f"{m.batches:,.1f}", f"{m.bound:,.1f}", gap, unseen, f"{m.ms:,.2f}"


def with_others(measured: Directed) -> list[BasePolicy]:
    """Return a policy, and the policies to compare it with."""
    return [measured, *(policies.get(name) for name in OTHERS if name != measured.name)]


def take_minibatches(workload: Workload, skip: int, minibatches: int, batch_size: int) -> list[Graph]:
    """Return merged graphs of mini-batches in file order, after the first `skip` instances."""
    instances = workload.first(skip + minibatches * batch_size)[skip:]
    loss = workload.batched("loss", "agenda", "reference")
    graphs = record(loss, instances)
    return [loss.merged(graphs[first : first + batch_size]) for first in range(0, len(graphs), batch_size)]
