"""Options that several commands share, so that each has one name, one default and one explanation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from autobatch.cli.threads import DEFAULT_THREADS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def split_names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Split names separated by commas, each of which may come once."""
    names = tuple(name.strip() for name in value.split(","))
    if "" in names or len(set(names)) < len(names):
        raise click.BadParameter(f"{value!r} should be different names separated by commas, such as depth,agenda.")
    return names


model_argument = click.argument("model", metavar="MODEL")
data_option = click.option(
    "--data", metavar="NAME_OR_PATH", help="A built-in generator, a file or a folder.  [default: what the model names]"
)
dim_option = click.option(
    "--dim", type=click.IntRange(min=1), default=128, show_default=True, help="Width of the model's states."
)
batch_size_option = click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Instances in a mini-batch.",
)
backend_option = click.option(
    "--backend", metavar="NAME", default="auto", show_default=True, help="What runs the batches."
)
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Where all random choices come from."
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=DEFAULT_THREADS,
    show_default=True,
    help="Threads of each matrix product.",
)
json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write one JSON object per result, one a line, to this file.",
)


def checkpoint_option(text: str, required: bool = False) -> Decorator:
    """Make the option that names a folder of checkpoints."""
    return click.option("--checkpoint", metavar="DIR", type=click.Path(path_type=Path), required=required, help=text)


def policies_option(default: str) -> Decorator:
    """Make the option that names several policies."""
    return click.option(
        "--policy",
        "policies",
        metavar="A,B,...",
        callback=split_names,
        default=default,
        show_default=True,
        help="Policies to compare.",
    )
