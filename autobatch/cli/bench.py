"""`autobatch bench`: how fast a model runs under several policies, or beside PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from autobatch.cli import completion, options
from autobatch.cli.peers import run_peers
from autobatch.cli.progress import show_progress
from autobatch.cli.racing import MODES, Timing, race
from autobatch.cli.results import describe_run, format_table, open_json
from autobatch.cli.threads import threads_in_force, use_threads
from autobatch.cli.workload import load_workload


@click.command()
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=completion.complete_model)
@options.data_option
@options.dim_option
@options.batch_size_option
@options.policies_option("unbatched,depth,agenda")
@options.backend_option
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="infer",
    show_default=True,
    help="Time losses alone, or with gradients and a step of the optimizer.",
)
@click.option(
    "--minibatches",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How many mini-batches to run: the first, in the order of the data's files.",
)
@click.option(
    "--repeats",
    metavar="N",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Timed runs of each mini-batch.",
)
@options.threads_option
@options.seed_option
@options.json_option
@click.option(
    "--peers",
    is_flag=True,
    help="Compare with the same model in PyTorch, written in several ways, each model if none is given; from a "
    "checkout, with real data beside it where there is some.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --peers: where the records go.  [default: experiments/results]",
)
@click.pass_context
def bench(
    ctx: click.Context,
    model: str | None,
    data: str | None,
    dim: int,
    batch_size: int,
    policies: tuple[str, ...],
    backend: str,
    mode: str,
    minibatches: int,
    repeats: int,
    threads: int,
    seed: int,
    json_path: Path | None,
    peers: bool,
    out: Path | None,
) -> int:
    """Time MODEL under several policies on the same mini-batches.

    MODEL is a name that `autobatch models` lists, or package.module:Class; its parameters are random. The policies take
    turns after an untimed round; the median of the repeated runs of a mini-batch counts, and means over the
    mini-batches are shown. A run merges recorded instances, schedules, places and executes; recording is not timed.

    With --peers, all options but --json have a meaning too, and what is not given is as in the experiment
    against_torch: models, widths and sizes of mini-batches in turn, both modes, one thread and two.

    \b
    Examples:
      autobatch bench tree-lstm --dim 64 --mode train
      autobatch bench tree-lstm --policy depth,agenda --json bench.jsonl
      autobatch bench --peers
      autobatch bench tree-lstm --peers --dim 64 --batch-size 64 --threads 1
    """
    if peers:
        return run_peers(ctx)
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    if out is not None:
        raise click.UsageError("--out goes with --peers; --json names a file for results.")
    use_threads(threads)
    workload = load_workload(model, data, dim, seed)
    n_steps = (repeats + 1) * minibatches * len(policies)
    with open_json(json_path) as results:
        with show_progress(n_steps) as progress:
            timings = race(
                workload, policies, backend, mode, batch_size, minibatches, repeats,
                step_done=lambda policy: progress.advance(f"timing {model}", policy),
            )  # fmt: skip
        click.echo(
            f"{model}, {workload.dataset.name}, dim {dim}, {mode}; per mini-batch of {batch_size}, "
            f"BLAS threads: {threads_in_force()}\n"
        )
        click.echo(format_timings(timings))
        for timing in timings:
            described = describe_run(workload, batch_size, timing.policy, timing.backend, mode)
            figures = {"instances_per_s": timing.instances_per_s, "ms": timing.ms, **timing.counts}
            results.write({**described, **figures, "minibatches": minibatches, "repeats": repeats})
    return 0


def format_timings(timings: Sequence[Timing]) -> str:
    """Lay out a table with a row per policy; speed-ups are over the first."""
    header = ("policy", "batches", "lower bound", "launches", "MB copied", "ms", "instances/s", "speed-up")
    rows = [
        (
            timing.policy,
            f"{timing.counts['batches']:,}",
            f"{timing.counts['lower_bound']:,}",
            f"{timing.counts['launches']:,.0f}",
            f"{timing.counts['copied_bytes'] / 1e6:.1f}",
            f"{timing.ms:,.1f}",
            f"{timing.instances_per_s:,.0f}",
            f"{timings[0].ms / timing.ms:.1f}x",
        )
        for timing in timings
    ]
    return format_table(header, rows)
