"""Run experiments of the checkout with options of `bench`, for its flags `--baselines`, `--roofline`, `--compile`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click
from click.core import ParameterSource

from autobatch.cli import experiment
from autobatch.errors import AutobatchError


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
    experiment.list_experiments()
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
