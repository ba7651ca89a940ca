"""`autobatch bench`: how fast a model runs under several policies, beside its peers, or beside its matmuls alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from autobatch.cli import completion, options
from autobatch.cli.measuring.compile_times import time_compilation
from autobatch.cli.measuring.peers import given, run_peers
from autobatch.cli.measuring.racing import MODES, Timing, race
from autobatch.cli.measuring.roofline import N_RUNS, race_matmuls
from autobatch.cli.progress import show_compilation, show_progress
from autobatch.cli.results import describe_run, format_table, open_json, say_precision
from autobatch.cli.threads import DEFAULT_THREADS, threads_in_force, use_threads
from autobatch.cli.workload import load_workload

COMPILATION_OPTIONS = ("model", "data", "dim", "batch_size", "seed", "json_path", "compilation")
ROOFLINE_OPTIONS = (
    "model", "data", "dim", "batch_size", "policies", "backend", "mode", "minibatches", "repeats", "seed", "json_path",
    "roofline",
)  # fmt: skip


@click.command()
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=completion.complete_model)
@options.data_option
@options.dim_option
@options.batch_size_option
@options.policies_option("unbatched,depth,agenda")
@options.backend_option
@options.precision_option
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
@options.tune_option
@options.seed_option
@options.json_option
@click.option(
    "--peers",
    is_flag=True,
    help="Compare with the same model in PyTorch, written in several ways, each model if none is given, and with trees "
    "in JAX where that is installed; from a checkout, with real data beside it where there is some.",
)
@click.option(
    "--roofline",
    is_flag=True,
    help="Compare a step with its matrix products alone, part by part: on the cpu backend, under one policy (auto), in "
    "mode train unless others are given.",
)
@click.option(
    "--compile",
    "compilation",
    is_flag=True,
    help="Time how long compiling takes until the model runs: with empty caches, and from full ones.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --peers: where the records go.  [default: experiments/results]",
)
@click.pass_context
@show_compilation()
def bench(
    ctx: click.Context,
    model: str | None,
    data: str | None,
    dim: int,
    batch_size: int,
    policies: tuple[str, ...],
    backend: str,
    precision: str,
    mode: str,
    minibatches: int,
    repeats: int,
    threads: int | str,
    tune: str,
    seed: int,
    json_path: Path | None,
    peers: bool,
    roofline: bool,
    compilation: bool,
    out: Path | None,
) -> int:
    """Time MODEL under several policies on the same mini-batches.

    MODEL is a name that `autobatch models` lists, or package.module:Class; its parameters are random. The policies take
    turns after an untimed round; the median of the repeated runs of a mini-batch counts, and means over the
    mini-batches are shown. A run merges recorded instances, schedules, places and executes; recording is not timed.

    With --roofline, a step of one policy is timed beside its matrix products alone: of the same sizes, in the same
    order, by the same libraries, on one thread. The ratio of the two, and where the rest of the time goes, are told.
    With --compile, two fresh processes, the first of them with empty caches, say how long compiling takes.

    With --peers, all options but --json have a meaning too, and what is not given is as in the experiment
    against_torch: models, widths and sizes of mini-batches in turn, both modes, one thread and two.

    \b
    Examples:
      autobatch bench tree-lstm --dim 64 --mode train
      autobatch bench tree-lstm --policy depth,agenda --json bench.jsonl
      autobatch bench --peers
      autobatch bench tree-lstm --peers --dim 64 --batch-size 64 --threads 1
      autobatch bench tree-lstm --roofline --dim 256 --batch-size 256
      autobatch bench tree-lstm --compile
    """
    if peers and threads == "auto":
        raise click.UsageError("--peers compares at given numbers of threads; give one.")
    if peers + roofline + compilation > 1:
        raise click.UsageError("--peers, --roofline and --compile measure different things; give one of them.")
    if peers:
        return run_peers(ctx)
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    if out is not None:
        raise click.UsageError("--out goes with --peers; --json names a file for results.")
    if roofline:
        return _compare_with_matmuls(ctx, json_path)
    if compilation:
        return _time_compilation(ctx, json_path)
    use_threads(threads)
    workload = load_workload(model, data, dim, seed, precision=precision).running(threads, tune)
    n_steps = (repeats + 1) * minibatches * len(policies)
    with open_json(json_path) as results:
        with show_progress(n_steps) as progress:
            timings = race(
                workload, policies, backend, mode, batch_size, minibatches, repeats,
                step_done=lambda policy: progress.advance(f"timing {model}", policy),
            )  # fmt: skip
        click.echo(
            f"{model}, {workload.dataset.name}, dim {dim}, {mode}{say_precision(precision)}; per mini-batch of "
            f"{batch_size}, BLAS threads: {threads if threads == 'auto' else threads_in_force()}\n"
        )
        click.echo(format_timings(timings))
        for timing in timings:
            described = describe_run(workload, batch_size, timing.policy, timing.backend, mode)
            figures = {"instances_per_s": timing.instances_per_s, "ms": timing.ms, **timing.counts}
            results.write({**described, **figures, "minibatches": minibatches, "repeats": repeats})
    return 0


def _compare_with_matmuls(ctx: click.Context, json_path: Path | None) -> int:
    """Time steps and their matrix products alone."""
    chosen = {**ctx.params, "policies": ("auto",), "backend": "cpu", "mode": "train"}
    chosen |= _take_options(ctx, "--roofline", ROOFLINE_OPTIONS)
    (policy, *others), model, dim, mode = (chosen[name] for name in ("policies", "model", "dim", "mode"))
    if others:
        raise click.UsageError(f"--roofline takes one policy, not {1 + len(others)}.")
    use_threads(DEFAULT_THREADS)
    workload = load_workload(model, chosen["data"], dim, chosen["seed"])
    batch_size, minibatches, repeats = (chosen[name] for name in ("batch_size", "minibatches", "repeats"))
    with open_json(json_path) as results:
        with show_progress((repeats + 1) * minibatches * N_RUNS) as progress:
            found = race_matmuls(
                workload, policy, chosen["backend"], mode, batch_size, minibatches, repeats,
                step_done=lambda what: progress.advance(f"timing {model}", what),
            )  # fmt: skip
        click.echo(
            f"{model}, {workload.dataset.name}, dim {dim}, {mode}; per mini-batch of {batch_size}, policy "
            f"{found.policy}, one thread\n\n{found}"
        )
        described = describe_run(workload, batch_size, found.policy, found.backend, mode)
        figures = {"instances_per_s": 1e3 * batch_size / found.ms, **found.figures()}
        results.write({**described, **figures, "minibatches": minibatches, "repeats": repeats})
    return 0


def _time_compilation(ctx: click.Context, json_path: Path | None) -> int:
    """Time the first steps of the model in processes of their own."""
    _take_options(ctx, "--compile", COMPILATION_OPTIONS)
    model, data, dim, batch_size, seed = (ctx.params[name] for name in ("model", "data", "dim", "batch_size", "seed"))
    workload = load_workload(model, data, dim, seed)
    workload.first(batch_size)
    with open_json(json_path) as results:
        with show_progress(1) as progress:
            found = time_compilation(workload, batch_size, progress.note)
        click.echo(f"{model}, {workload.dataset.name}, dim {dim}; the first steps forward and backward\n\n{found}")
        results.write({**describe_run(workload, batch_size, "score", "cpu", "compile"), **found.figures()})
    return 0


def _take_options(ctx: click.Context, flag: str, known: Sequence[str]) -> dict[str, Any]:
    """Take what is given on the command line; others than the known ones are refused."""
    taken = given(ctx)
    unknown = [param.opts[0] for param in ctx.command.params if param.name in taken and param.name not in known]
    if unknown:
        raise click.UsageError(f"{flag} takes no {unknown[0]}; leave it out.")
    return taken


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
