"""The command `autobatch`, which collects the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import autobatch as ab
from autobatch.cli.ending import run_process
from autobatch.cli.experiment import experiment
from autobatch.cli.explaining.explain import explain
from autobatch.cli.listing import data, models
from autobatch.cli.measuring.bench import bench
from autobatch.cli.measuring.doctor import doctor
from autobatch.cli.policies.policy import policy
from autobatch.cli.serving.serve import serve
from autobatch.cli.training.evaluate import evaluate, export, predict
from autobatch.cli.training.train import train
from autobatch.cli.warming import warm
from autobatch.cli.words import Commands
from autobatch.system.background import VARIABLE


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(ab.__version__, prog_name="autobatch")
def commands() -> None:
    """Batch programs that differ from instance to instance: trees, chains, lattices.

    \b
    Start here:
      autobatch doctor               is everything in place?
      autobatch train tree-lstm      train a Tree-LSTM, batched
      autobatch bench tree-lstm      compare the batching policies
      autobatch explain tree-lstm    see what runs together

    `autobatch COMMAND --help` explains a command. For completion by Tab in bash (zsh, fish: likewise), put into
    ~/.bashrc:

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
    """Run the command that the shell was given, and exit.

    Commands wait for what they compile: some measure, and training that was stopped and resumed ends in the same bits.
    """
    os.environ.setdefault(VARIABLE, "inf")
    run_process(lambda: dispatch(sys.argv[1:]))


def dispatch(arguments: Sequence[str]) -> object:
    """Run one command; errors pass."""
    return commands.main(list(arguments), prog_name="autobatch", standalone_mode=False)


if __name__ == "__main__":
    main()
