"""The command `autobatch`, the group of all commands; and `autobatch models` and `autobatch data`, which list them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import autobatch as ab
from autobatch.cli.bench import bench
from autobatch.cli.doctor import doctor
from autobatch.cli.ending import run_process
from autobatch.cli.experiment import experiment
from autobatch.cli.explain import explain
from autobatch.cli.policy import policy
from autobatch.cli.serving.serve import serve
from autobatch.cli.training.evaluate import evaluate, export, predict
from autobatch.cli.training.train import train
from autobatch.cli.warming import warm
from autobatch.cli.words import Commands
from autobatch.models import MODELS, ModelSpec, find_model
from autobatch.models.data.dataset import GENERATORS
from autobatch.system.background import VARIABLE


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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(ab.__version__, prog_name="autobatch")
def commands() -> None:
    """Batch programs whose structure differs between instances: trees, chains, lattices.

    \b
    Start here:
      autobatch doctor               check the installation
      autobatch train tree-lstm      train a Tree-LSTM, batched
      autobatch bench tree-lstm      compare the speed of batching policies
      autobatch explain tree-lstm    show the batches of a mini-batch

    `autobatch COMMAND --help` explains a command. For tab completion in bash (zsh and fish work alike), add this line
    to ~/.bashrc:

    \b
      eval "$(_AUTOBATCH_COMPLETE=bash_source autobatch)"
    """


for command in (
    train,
    evaluate,
    predict,
    export,
    serve,
    bench,
    explain,
    policy,
    experiment,
    models,
    data,
    doctor,
    warm,
):
    commands.add_command(command)


def main() -> NoReturn:
    """Run the command given on the command line, and exit.

    Commands wait for compilation, so that timings are reliable and resumed training is bit-identical.
    """
    os.environ.setdefault(VARIABLE, "inf")
    run_process(lambda: dispatch(sys.argv[1:]))


def dispatch(arguments: Sequence[str]) -> object:
    """Run one command; errors propagate."""
    return commands.main(list(arguments), prog_name="autobatch", standalone_mode=False)


if __name__ == "__main__":
    main()
