"""Options that several commands share, so that each has one name, one default and one explanation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click

from autobatch import policies
from autobatch.backends import NAMES
from autobatch.cli import completion
from autobatch.cli.places import DATA, FILE, PATH
from autobatch.cli.threads import DEFAULT_THREADS
from autobatch.cli.words import Word, check_policy, split_policies
from autobatch.cli.words import model_argument as make_model_argument
from autobatch.ir.precision import PRECISIONS
from autobatch.system.processor import usable_cores

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
MOST_DIM = 10**6  # far beyond any memory, and NumPy can still say so


class Whole(click.IntRange):
    """A whole number of at least `min`, and at most `max` if that is given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it; the error says what is wanted."""
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter:
            wanted = f"of at least {self.min:.0f}" if self.max is None else f"from {self.min:.0f} to {self.max:.0f}"
            self.fail(f"must be a whole number {wanted}, got {value!r}", param, ctx)
        return number


class Real(click.FloatRange):
    """A number of at least `min`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it; the error says what is wanted."""
        try:
            number: float = super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is no number of at least {self.min:g}; give one", param, ctx)
        return number


def to_bytes(text: str) -> int:
    """Read a number of bytes with or without a unit.

    Raises:
        click.BadParameter: it is no number of bytes, or less than 1.

    >>> [to_bytes(text) for text in ("512", "1.5kB", "2 GiB")]
    [512, 1500, 2147483648]
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]*)", text.strip().lower())
    n_bytes = int(float(found[1]) * UNITS[found[2]]) if found and found[2] in UNITS else 0
    if n_bytes < 1:
        raise click.BadParameter(f"{text!r} is no number of bytes; give one such as 2000000000, 2GB or 1.5GiB.")
    return n_bytes


def to_threads(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
    """Read a number of threads, or auto."""
    if value == "auto":
        return value
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is no number of threads; give one of at least 1, or auto.")
    n_cores = usable_cores()
    if int(value) > n_cores:
        cores = "one core" if n_cores == 1 else f"{n_cores} cores"
        click.echo(f"autobatch: --threads {value} is more than the {cores} here, which makes nothing faster.", err=True)
    return int(value)


def count_option(name: str, default: int | None, text: str, least: int = 1, most: int | None = None) -> Decorator:
    """Make an option that takes a whole number."""
    return click.option(
        name, metavar="N", type=Whole(min=least, max=most), default=default, show_default=True, help=text
    )


def choice_option(name: str, choices: Iterable[str], default: str, text: str) -> Decorator:
    """Make an option that takes one of several words."""
    return click.option(name, type=Word([*choices]), default=default, show_default=True, help=text)


model_argument = make_model_argument()
data_option = click.option(
    "--data",
    metavar="NAME_OR_PATH",
    type=DATA,
    shell_complete=completion.complete_data,
    help="A generator, a file or a folder; `autobatch data` lists generators and formats.  [default: the generator "
    "that `autobatch models` names]",
)
dim_option = count_option(
    "--dim", 128, "Width of the model's states, the argument `dim` of its constructor.", most=MOST_DIM
)
batch_size_option = count_option("--batch-size", 64, "Instances in a mini-batch.")
policy_option = click.option(
    "--policy",
    metavar="NAME",
    default="auto",
    show_default=True,
    callback=check_policy,
    shell_complete=completion.complete_policies,
    help=f"What decides which nodes run together: auto, {', '.join(policies.names())}, or a policy's file.",
)
backend_option = choice_option("--backend", ("auto", *NAMES), "auto", "What runs the batches.")
other_backend_option = click.option(
    "--backend", type=Word(NAMES), help="What runs the batches.  [default: that of training]"
)
precision_option = choice_option(
    "--precision",
    PRECISIONS,
    "float32",
    "bf16 rounds the operands of matrix products to 16 bits; sums and all else stay float32. `autobatch doctor` "
    "measures how much faster that is here.",
)
seed_option = count_option("--seed", 0, "Seed of all random choices; the same seed gives the same results.", least=0)
max_bytes_option = click.option(
    "--max-bytes",
    metavar="SIZE",
    type=to_bytes,
    help="Run a mini-batch whose values would take more than this, such as 2GB, in parts.  [default: no limit]",
)
threads_option = click.option(
    "--threads",
    metavar="N",
    callback=to_threads,
    default=str(DEFAULT_THREADS),
    show_default=True,
    help="CPU threads for a mini-batch; auto measures what is fastest, and goes back to one on a busy machine.",
)
json_option = click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=FILE,
    help="Also write the results to this file, one JSON object a line; replaces the file.",
)


def checkpoint_option(text: str, required: bool = False) -> Decorator:
    """Make the option that names a folder of checkpoints."""
    return click.option("--checkpoint", metavar="DIR", type=PATH, required=required, help=text)


def policies_option(default: str) -> Decorator:
    """Make the option that names several policies."""
    return click.option(
        "--policy",
        "policies",
        metavar="A,B,...",
        callback=split_policies,
        default=default,
        show_default=True,
        shell_complete=completion.complete_policies,
        help=f"Policies to compare: auto, {', '.join(policies.names())}, or files of policies.",
    )
