"""`autobatch bench`: measure the speed of a model under several policies, or run an experiment that compares it.

The flags `--baselines`, `--roofline` and `--compile` run experiments of the checkout with the options of `bench`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click
from click.core import ParameterSource

from autobatch.cli import experiment, options
from autobatch.cli.machine import threads_in_force, use_threads
from autobatch.cli.progress import show_compilation, show_progress
from autobatch.cli.racing import MODES, Timing, race
from autobatch.cli.results import describe_run, format_table, open_json, say_precision
from autobatch.cli.words import FOLDER, model_argument
from autobatch.cli.workload import load_workload, say_dim
from autobatch.errors import AutobatchError
from autobatch.policies.rules.rules import with_origin


class Forwarded(NamedTuple):
    """An experiment: its script, and the setting for each parameter of `bench` that it supports."""

    script: str
    settings: Mapping[str, str]


_WORKLOAD = {
    "model": "model={}", "data": "data={}", "dim": "dim={}", "batch_size": "batch_size={}", "seed": "seed={}",
    "out": "out={}", "json_path": "json={}",
}  # fmt: skip
_RUNS = {"policies": "policy={}", "backend": "backend={}", "mode": "mode={}", "minibatches": "minibatches={}",
         "repeats": "repeats={}"}  # fmt: skip
FORWARDED: Mapping[str, Forwarded] = {
    "--baselines": Forwarded("against_torch", {
        **_RUNS, "model": "models={}", "data": "data={}", "dim": "dims={},", "batch_size": "batch_sizes={},",
        "backend": "backends={}", "mode": "modes={}", "threads": "threads={}", "seed": "seed={}", "out": "out={}",
    }),
    "--roofline": Forwarded("roofline", {**_WORKLOAD, **_RUNS}),
    "--compile": Forwarded("compile_times", _WORKLOAD),
}  # fmt: skip
"""By the flag of `bench`."""


def forward(ctx: click.Context, flag: str) -> int:
    """Run an experiment with the options of the command line; the others have the experiment's own defaults.

    Returns:
        Its exit status.

    Raises:
        AutobatchError: autobatch does not run from a checkout, or PyTorch is not installed.
        click.UsageError: the experiment does not support an option.
    """
    settings = list_settings(ctx, flag)
    experiment.list_experiments()  # for its error without a checkout
    if flag == "--baselines" and find_spec("torch") is None:
        raise AutobatchError("comparing with PyTorch: the package torch is not installed; pip install torch.")
    return experiment.run_script(FORWARDED[flag].script, settings)


def list_settings(ctx: click.Context, flag: str) -> list[str]:
    """Convert the given options to settings of an experiment; raise click.UsageError for unsupported ones."""
    settings = []
    for param in ctx.command.params:
        name, option = str(param.name), param.opts[0]
        if option in (flag, "--peers") or ctx.get_parameter_source(name) != ParameterSource.COMMANDLINE:
            continue
        value, form = ctx.params[name], FORWARDED[flag].settings.get(name)
        if form is None:
            raise click.UsageError(f"{flag} does not support {option}; leave it out.")
        if name == "policies":
            if len(value) > 1:
                raise click.UsageError(f"--policy must be one policy with {flag}, got {len(value)}.")
            (value,) = value
        settings.append(form.format(value.resolve() if isinstance(value, Path) else value))
    return settings


@click.command()
@model_argument(metavar="[MODEL]", required=False)
@options.data_option
@options.dim_option
@options.batch_size_option
@options.policies_option("auto,unbatched,depth,agenda")
@options.backend_option
@options.precision_option
@options.choice_option("--mode", MODES, "infer", "Time the forward pass, or a whole training step.")
@options.count_option("--minibatches", 4, "Number of mini-batches, the first in file order.")
@options.count_option("--repeats", 5, "Number of timed runs per mini-batch.")
@options.threads_option
@options.seed_option
@options.json_option
@click.option(
    "--baselines",
    is_flag=True,
    help="Compare with PyTorch implementations of the model, and for trees with JAX if it is installed. Without MODEL, "
    "compare all models. Uses the data folder next to the checkout if it exists, otherwise generated data.",
)
@click.option("--peers", is_flag=True, hidden=True)  # deprecated
@click.option(
    "--roofline",
    is_flag=True,
    help="Compare the time of a step with that of its matrix products. The default mode is train.",
)
@click.option(
    "--compile",
    "compilation",
    is_flag=True,
    help="Time the compilation, with an empty and with a full cache.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=FOLDER,
    help="Folder for the record of --baselines, --roofline or --compile.  [default: experiments/results/quick]",
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
    seed: int,
    json_path: Path | None,
    baselines: bool,
    peers: bool,
    roofline: bool,
    compilation: bool,
    out: Path | None,
) -> int:
    """Compare the speed of MODEL under several policies.

    MODEL is a name from `autobatch models`, or package.module:Class; its parameters are random. After a warm-up round,
    the policies take turns on the same mini-batches. Times are medians over the runs of a mini-batch, averaged over
    mini-batches; speed-ups are relative to the slowest policy. A run merges, schedules, plans and executes recorded
    instances. Recording is not timed.

    --baselines, --roofline and --compile run an experiment, which needs a checkout of the repository, and write a
    record.
    --roofline times a step and its matrix products alone, with the same sizes, order and libraries, on one thread of
    the cpu backend. --compile starts two new processes, the first with empty caches.

    \b
    Examples:
      autobatch bench tree-lstm --dim 64 --mode train
      autobatch bench tree-lstm --policy depth,agenda --json bench.jsonl
      autobatch bench --baselines
      autobatch bench tree-lstm --baselines --dim 64 --batch-size 64 --threads 1
      autobatch bench tree-lstm --roofline --dim 256 --batch-size 256
      autobatch bench tree-lstm --compile
    """
    if peers:
        click.echo("autobatch: --peers will be removed in 0.4; use --baselines.", err=True)
        baselines = True
    experiments = {"--baselines": baselines, "--roofline": roofline, "--compile": compilation}
    flags = [flag for flag, is_given in experiments.items() if is_given]
    if len(flags) > 1:
        raise click.UsageError("--baselines, --roofline and --compile are mutually exclusive; give one of them.")
    if baselines and threads == "auto":
        raise click.UsageError("--threads must be a number with --baselines, got auto.")
    if baselines:
        return forward(ctx, "--baselines")
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    if flags:
        return forward(ctx, flags[0])
    if out is not None:
        raise click.UsageError("--out needs --baselines, --roofline or --compile; use --json for a file of results.")
    use_threads(threads)
    workload = load_workload(model, data, dim, seed, precision=precision).with_threads(threads)
    n_steps = (repeats + 1) * minibatches * len(policies)
    with open_json(json_path) as results:
        with show_progress(n_steps) as progress:
            timings = race(
                workload, policies, backend, mode, batch_size, minibatches, repeats,
                step_done=lambda policy: progress.advance(f"timing {model}", policy),
            )  # fmt: skip
        click.echo(
            f"{model}, {workload.dataset.name}{say_dim(workload)}, {mode}{say_precision(precision)}; per mini-batch of "
            f"{batch_size}, BLAS threads: {threads if threads == 'auto' else threads_in_force()}\n"
        )
        click.echo(format_timings(timings))
        for timing in timings:
            described = describe_run(workload, batch_size, timing.policy, timing.backend, mode)
            figures = {"instances_per_s": timing.instances_per_s, "ms": timing.ms, **timing.counts}
            results.write({**described, **figures, "minibatches": minibatches, "repeats": repeats})
    return 0


def format_timings(timings: Sequence[Timing]) -> str:
    """Format a table with a row per policy; speed-ups are over the slowest."""
    slowest = max(timing.ms for timing in timings)
    header = ("policy", "batches", "lower bound", "launches", "MB copied", "ms", "instances/s", "speed-up")
    rows = [
        (
            with_origin(timing.policy),
            f"{timing.counts['batches']:,}",
            f"{timing.counts['lower_bound']:,}",
            f"{timing.counts['launches']:,.0f}",
            f"{timing.counts['copied_bytes'] / 1e6:.1f}",
            f"{timing.ms:,.1f}",
            f"{timing.instances_per_s:,.0f}",
            f"{slowest / timing.ms:.1f}x",
        )
        for timing in timings
    ]
    return format_table(header, rows)
