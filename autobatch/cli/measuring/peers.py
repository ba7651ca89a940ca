"""`autobatch bench --peers`: the experiment that compares with PyTorch and JAX, told in the words of `bench`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from autobatch.cli import experiment
from autobatch.errors import AutobatchError

EXPERIMENT = "against_torch"
SETTINGS: Mapping[str, tuple[str, str]] = {
    "model": ("models", "{}"),
    "data": ("data", "{}"),
    "dim": ("dims", "{},"),
    "batch_size": ("batch_sizes", "{},"),
    "policies": ("policy", "{}"),
    "backend": ("backends", "{}"),
    "mode": ("modes", "{}"),
    "minibatches": ("minibatches", "{}"),
    "repeats": ("repeats", "{}"),
    "threads": ("threads", "{}"),
    "seed": ("seed", "{}"),
    "out": ("out", "{}"),
}
"""By parameter of the command, the setting of the experiment, and how its value is written."""


def run_peers(ctx: click.Context) -> int:
    """Run the experiment with what was given on the command line; what was not given is as the experiment has it.

    Returns:
        Its exit status.

    Raises:
        AutobatchError: this is no checkout, or PyTorch is not installed.
        click.UsageError: a parameter has no meaning here.
    """
    settings = [to_setting(name, value) for name, value in given(ctx).items() if name != "peers"]
    experiment.list_experiments()
    if find_spec("torch") is None:
        raise AutobatchError("comparing with PyTorch: the package torch is not installed; pip install torch.")
    script = experiment.FOLDER / f"{EXPERIMENT}.py"
    return subprocess.run([sys.executable, script, *settings], check=False).returncode


def given(ctx: click.Context) -> dict[str, Any]:
    """The parameters that the command line has, by name."""
    return {
        name: value
        for name, value in ctx.params.items()
        if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE
    }


def to_setting(name: str, value: Any) -> str:
    """Write a parameter as a setting.

    Raises:
        click.UsageError: the experiment has no such setting.

    >>> to_setting("dim", 64)
    'dims=64,'
    """
    if name not in SETTINGS:
        if name == "json_path":
            raise click.UsageError("--json does not go with --peers, which writes a record; --out says where.")
        raise click.UsageError(f"--{name} does not go with --peers.")
    if name == "policies":
        if len(value) > 1:
            raise click.UsageError(f"--peers takes one policy, not {len(value)}.")
        (value,) = value
    setting, form = SETTINGS[name]
    return f"{setting}={form.format(value.resolve() if isinstance(value, Path) else value)}"
