"""Options shared by several commands, so that each has one name, one default and one help text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import click

from autobatch import policies
from autobatch.backends import NAMES
from autobatch.cli import words
from autobatch.cli.machine import DEFAULT_THREADS
from autobatch.cli.words import DATA, FILE, PATH, Word, check_policy, split_policies
from autobatch.cli.words import model_argument as make_model_argument
from autobatch.ir.precision import PRECISIONS
from autobatch.policies.rules.rules import with_origin
from autobatch.system.processor import usable_cores

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
POLICIES = ", ".join(map(with_origin, policies.names()))
MOST_DIM = 10**6  # far beyond any memory, but small enough for NumPy to raise its own error


class Whole(click.IntRange):
    """An int of at least `min` and, if given, at most `max`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter:
            wanted = f"of at least {self.min:.0f}" if self.max is None else f"from {self.min:.0f} to {self.max:.0f}"
            self.fail(f"must be an int {wanted}, got {value!r}", param, ctx)
        return number


class Real(click.FloatRange):
    """A number of at least `min`; with `max`, one strictly between the two (both bounds are open)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number: float = super().convert(value, param, ctx)
            if math.isnan(number):
                raise click.BadParameter("")  # for the message below
        except click.BadParameter:
            wanted = f"of at least {self.min:g}" if self.max is None else f"above {self.min:g} and below {self.max:g}"
            self.fail(f"must be a number {wanted}, got {value!r}", param, ctx)
        return number


def to_bytes(text: str) -> int:
    """Parse a number of bytes, with or without a unit.

    Raises:
        click.BadParameter: the text is not a number of bytes, or is less than 1.

    >>> [to_bytes(text) for text in ("512", "1.5kB", "2 GiB")]
    [512, 1500, 2147483648]
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]*)", text.strip().lower())
    n_bytes = int(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if n_bytes < 1:
        raise click.BadParameter(f"must be a number of bytes, such as 2000000000, 2GB or 1.5GiB, got {text!r}.")
    return n_bytes


def to_threads(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
    """Parse a number of threads, or "auto"; warn about more threads than cores."""
    if value == "auto":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"must be an int of at least 1, or auto, got {value!r}.")
    n_cores = usable_cores()
    if int(value) > n_cores:
        cores = "one core" if n_cores == 1 else f"{n_cores} cores"
        click.echo(f"autobatch: --threads {value} exceeds the {cores} here and will not be faster.", err=True)
    return int(value)


def count_option(name: str, default: int | None, text: str, least: int = 1, most: int | None = None) -> Decorator:
    """Make an option that takes an int from `least` to `most`."""
    return click.option(
        name, metavar="N", type=Whole(min=least, max=most), default=default, show_default=True, help=text
    )


def choice_option(name: str, choices: Iterable[str], default: str, text: str) -> Decorator:
    """Make an option that takes one of several values."""
    return click.option(name, type=Word([*choices]), default=default, show_default=True, help=text)


model_argument = make_model_argument()
data_option = click.option(
    "--data",
    metavar="NAME_OR_PATH",
    type=DATA,
    shell_complete=words.complete_data,
    help="A generator, a file or a folder; see `autobatch data` for generators and formats.  [default: the model's "
    "generator, see `autobatch models`]",
)
dim_option = count_option("--dim", 128, "Width of the hidden states (the constructor's argument dim).", most=MOST_DIM)
batch_size_option = count_option("--batch-size", 64, "Instances per mini-batch.")
policy_option = click.option(
    "--policy",
    metavar="NAME",
    default="auto",
    show_default=True,
    callback=check_policy,
    shell_complete=words.complete_policies,
    help=f"The batching policy: auto, {POLICIES}, or a policy file.",
)
backend_option = choice_option("--backend", ("auto", *NAMES), "auto", "The execution backend.")
other_backend_option = click.option(
    "--backend", type=Word(NAMES), help="The execution backend.  [default: the one used in training]"
)
precision_option = choice_option(
    "--precision",
    PRECISIONS,
    "float32",
    "bf16 rounds the operands of matrix products to 16 bits; sums and all other ops stay in float32. `autobatch "
    "doctor` measures the speed-up on this machine.",
)
seed_option = count_option("--seed", 0, "Seed of all random numbers; equal seeds give equal results.", least=0)
max_bytes_option = click.option(
    "--max-bytes",
    metavar="SIZE",
    type=to_bytes,
    help="Memory limit for values, such as 2GB; larger mini-batches run in parts.  [default: no limit]",
)
threads_option = click.option(
    "--threads",
    metavar="N",
    callback=to_threads,
    default=str(DEFAULT_THREADS),
    show_default=True,
    help="CPU threads per mini-batch; auto measures which number is fastest, and uses 1 on a busy machine.",
)
json_option = click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=FILE,
    help="Also write the results as JSON lines; an existing file is overwritten.",
)


def checkpoint_option(text: str, required: bool = False) -> Decorator:
    """Make the option for a folder of checkpoints."""
    return click.option("--checkpoint", metavar="DIR", type=PATH, required=required, help=text)


def policies_option(default: str) -> Decorator:
    """Make the option for several policies."""
    return click.option(
        "--policy",
        "policies",
        metavar="A,B,...",
        callback=split_policies,
        default=default,
        show_default=True,
        shell_complete=words.complete_policies,
        help=f"Policies to compare: auto, {POLICIES}, or policy files.",
    )
