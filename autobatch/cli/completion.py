"""What a shell offers when the user presses Tab, for values that need not be among the names offered.

A shell asks by starting the command, so imports wait until they are needed and nothing heavy is among them. Options
whose values are all known are a `click.Choice`, which completes by itself.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the models that come with autobatch, each with its summary."""
    from autobatch.models import MODELS, find_model

    return [CompletionItem(name, help=find_model(name).summary) for name in MODELS if name.startswith(incomplete)]


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the generators, and paths."""
    from autobatch.models.data.dataset import GENERATORS

    path = CompletionItem(incomplete, type="file")
    return [*click.Choice(list(GENERATORS)).shell_complete(ctx, param, incomplete), path]


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the policies; after a comma, those that do not stand before it."""
    from autobatch import policies

    before, comma, last = incomplete.rpartition(",")
    left = [name for name in ("auto", *policies.names()) if name not in before.split(",")]
    found = click.Choice(left).shell_complete(ctx, param, last)
    return [CompletionItem(f"{before}{comma}{item.value}") for item in found]
