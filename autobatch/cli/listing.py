"""`autobatch models` and `autobatch data`: list models and data."""

from __future__ import annotations

import click

from autobatch.models import MODELS, ModelSpec, find_model
from autobatch.models.data.dataset import GENERATORS


@click.command()
def models() -> None:
    """List the models included in autobatch."""
    for name in MODELS:
        spec = find_model(name)
        _describe(name, _facts(spec))
    click.echo(
        "\nFor a model of your own, give package.module:Class, a subclass of autobatch.Module that reads trees, or\n"
        "the files described by its attribute files, an autobatch.readers.Files; for other data, package.module:NAME,\n"
        "an autobatch.models.ModelSpec. The constructor may have the parameters rng, dim and the sizes of the data\n"
        "(n_words, n_classes, ...)."
    )


@click.command()
def data() -> None:
    """List data generators and file formats."""
    specs = [find_model(name) for name in MODELS]
    for name, generator in GENERATORS.items():
        readers = [spec.name for spec in specs if name in spec.generators]
        _describe(name, {"about": generator.summary, "models": ", ".join(readers), "option": f"--data {name}"})
    for reads in dict.fromkeys(spec.reads for spec in specs):
        readers = [spec.name for spec in specs if spec.reads == reads]
        _describe("files", {"about": reads, "models": ", ".join(readers), "option": "--data PATH"})


def _facts(spec: ModelSpec) -> dict[str, str]:
    return {
        "about": spec.summary,
        "generates": ", ".join(spec.generators) or "nothing",
        "reads": spec.reads,
        "default": f"--data {spec.default_data}",
    }


def _describe(name: str, facts: dict[str, str]) -> None:
    click.echo(name)
    for label, fact in facts.items():
        click.echo(f"  {label + ':':<10} {fact}")
