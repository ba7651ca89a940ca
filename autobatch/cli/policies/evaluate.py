"""`autobatch policy eval`: count the batches of policies on mini-batches, beside others and the lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import click
import numpy as np

from autobatch import policies
from autobatch.cli import options
from autobatch.cli.places import FILE
from autobatch.cli.results import describe_run, format_table, open_json
from autobatch.cli.workload import Workload, load_workload, record
from autobatch.errors import PolicyError
from autobatch.graph.graph import Graph
from autobatch.policies.rules.directed import Directed
from autobatch.schedule.make import make_schedule
from autobatch.schedule.schedule import BasePolicy, min_batches

OTHERS = ("score+both+compact", "agenda")
file_argument = click.argument("file", metavar="FILE", type=FILE)
minibatches_option = options.count_option("--minibatches", 4, "How many mini-batches.")


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
    "Instances to leave out at the beginning.  [default: those that the policy was learned from]",
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
    """Count the batches of the policy in FILE on mini-batches of MODEL that it was not learned from.

    FILE is one that `autobatch policy learn` wrote, or the name of a policy that comes with weights, such as score.
    Beside it stand other policies, and the lower bound that no schedule can go below.
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
    """Load a policy, or make the one of this name that comes with weights.

    Raises:
        PolicyError: the file is refused, or is the name of a policy that has learned nothing.
    """
    name = str(file)
    if file.exists() or name.partition("+")[0] not in ("auto", *policies.names()):
        return policies.load(file)
    named = policies.get(name)
    if not isinstance(named, policies.Score | policies.Deep):
        raise PolicyError(
            f"cannot look into policy {name!r}: it comes with the package and has learned nothing, so there is nothing "
            f"to show; autobatch bench and explain take it by its name, as --policy {name}."
        )
    return named


@dataclass(frozen=True)
class Measurement:
    """Means over mini-batches of one policy; `unseen_share` is None for those that have learned no states."""

    policy: str
    batches: float
    bound: float
    unseen_share: float | None
    ms: float


def measure(measured: BasePolicy, graphs: Sequence[Graph]) -> Measurement:
    """Plan each mini-batch."""
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
    """Write a table of them."""
    return format_table(_HEADER, [_row(measurement) for measurement in measurements])


_HEADER = ("policy", "batches", "lower bound", "gap", "states unseen", "ms to plan")


def _row(m: Measurement) -> tuple[str, ...]:
    unseen = "" if m.unseen_share is None else f"{m.unseen_share:.1%}"
    gap = f"{m.batches / m.bound - 1:.1%}" if m.bound else ""
    return m.policy, f"{m.batches:,.1f}", f"{m.bound:,.1f}", gap, unseen, f"{m.ms:,.2f}"


def with_others(measured: Directed) -> list[BasePolicy]:
    """Give a policy, and those that it is compared with."""
    return [measured, *(policies.get(name) for name in OTHERS if name != measured.name)]


def take_minibatches(workload: Workload, skip: int, minibatches: int, batch_size: int) -> list[Graph]:
    """Merge mini-batches of the instances in file order."""
    instances = workload.first(skip + minibatches * batch_size)[skip:]
    loss = workload.batched("loss", "agenda", "reference")
    graphs = record(loss, instances)
    return [loss.merged(graphs[first : first + batch_size]) for first in range(0, len(graphs), batch_size)]
