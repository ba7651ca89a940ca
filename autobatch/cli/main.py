"""The command `autobatch`, which collects the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

import autobatch as ab
from autobatch.cli.bench import bench
from autobatch.cli.doctor import doctor
from autobatch.cli.ending import run_to_the_end
from autobatch.cli.explain import explain
from autobatch.cli.listing import data, models
from autobatch.cli.train import train


class _Commands(click.Group):
    """A group that Ctrl-C ends quietly: click itself would print an empty line first."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order in which they were added."""
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(ab.__version__, prog_name="autobatch")
def commands() -> None:
    """Batch programs that differ from instance to instance: trees, chains, lattices.

    \b
    Start here:
      autobatch doctor               is everything in place?
      autobatch train tree-lstm      train a Tree-LSTM, batched
      autobatch bench tree-lstm      compare the batching policies
      autobatch explain tree-lstm    see what runs together
    """


for command in (train, bench, explain, models, data, doctor):
    commands.add_command(command)


def main() -> None:
    """Run the command that the shell was given, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; give its exit status."""
    words = list(arguments) or ["--help"]
    return run_to_the_end(lambda: commands.main(words, prog_name="autobatch", standalone_mode=False))


if __name__ == "__main__":
    main()
