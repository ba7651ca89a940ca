"""Tab completion for arguments that also take values other than the suggested ones.

The shell runs the command at each completion, so heavy imports are avoided, and others are local. Options with a fixed
set of values are a `click.Choice`, which has its own completion.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Suggest the models of autobatch with their summaries."""
    from autobatch.models import MODELS, find_model

    return [CompletionItem(name, help=find_model(name).summary) for name in MODELS if name.startswith(incomplete)]


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Suggest generators and paths."""
    from autobatch.models.data.dataset import GENERATORS

    path = CompletionItem(incomplete, type="file")
    return [*click.Choice(list(GENERATORS)).shell_complete(ctx, param, incomplete), path]


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Suggest policies with the libraries that they come from; after a comma, only those not listed before it."""
    from autobatch import policies
    from autobatch.policies.rules.rules import ORIGINS

    before, comma, last = incomplete.rpartition(",")
    left = [name for name in ("auto", *policies.names()) if name not in before.split(",")]
    found = click.Choice(left).shell_complete(ctx, param, last)
    return [CompletionItem(f"{before}{comma}{item.value}", help=ORIGINS.get(item.value)) for item in found]
