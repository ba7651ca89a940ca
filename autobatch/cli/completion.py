"""What a shell offers when the user presses Tab: names of models, data, policies and backends, and paths.

A shell asks by starting the command, so imports wait until they are needed and nothing heavy is among them.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the models that come with autobatch, each with what it is."""
    from autobatch.models import MODELS, find_model

    return [CompletionItem(name, help=find_model(name).summary) for name in MODELS if name.startswith(incomplete)]


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the generators, and paths."""
    from autobatch.models.data.dataset import GENERATORS

    return [*_matching(GENERATORS, incomplete), CompletionItem(incomplete, type="file")]


def complete_policy(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the policies."""
    from autobatch import policies

    return _matching(["auto", *policies.names()], incomplete)


def complete_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the policies for the last of several, those before it left out."""
    from autobatch import policies

    before, comma, last = incomplete.rpartition(",")
    left = [name for name in ("auto", *policies.names()) if name not in before.split(",")]
    return [CompletionItem(f"{before}{comma}{item.value}") for item in _matching(left, last)]


def complete_backend(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the backends."""
    from autobatch.runtime import NAMES

    return _matching(["auto", *NAMES], incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
