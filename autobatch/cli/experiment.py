"""`autobatch experiment`: run the scripts that measured the figures in the documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

import autobatch as ab
from autobatch.errors import DataError

ALL = "all"
FOLDER = Path(ab.__file__).resolve().parents[1] / "experiments"
"""In a checkout; an installed package has none."""
UNAVAILABLE = 69
"""The exit status of a script that needs what this machine does not have, as of `sysexits.h`."""
_MAIN = 'if __name__ == "__main__":'


@click.command()
@click.argument("name", metavar=f"NAME|{ALL}")
@click.argument("settings", metavar="[SETTING=VALUE]...", nargs=-1)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the records go.  [default: experiments/results]",
)
def experiment(name: str, settings: tuple[str, ...], out: Path | None) -> int:
    """Run an experiment of the checkout, or all of them.

    NAME is a script in the folder experiments/, whose first lines explain its purpose and its settings. It prints a
    table and writes a record of settings, machine, raw timings and figures. Of all, those that need a GPU are left out
    where there is none.

    \b
    Examples:
      autobatch experiment bound_and_gap
      autobatch experiment batching_policies workloads=tree-lstm sizes=32,256 --out /tmp
    """
    names = list_experiments()
    if name not in (ALL, *names):
        raise DataError(f"there is no experiment {name!r}; there are {', '.join(names)}, and {ALL} for each in turn.")
    words = [*settings, *([] if out is None else [f"out={out.resolve()}"])]
    for one in names if name == ALL else [name]:
        if name == ALL:
            click.echo(f"{one}\n")
            sys.stdout.flush()
        status = subprocess.run([sys.executable, FOLDER / f"{one}.py", *words], check=False).returncode
        if status and not (name == ALL and status == UNAVAILABLE):
            return status
    return 0


def list_experiments() -> list[str]:
    """List the scripts in the folder of experiments that run by themselves.

    Raises:
        DataError: this is no checkout.
    """
    if not (FOLDER / "harness.py").is_file():
        raise DataError(
            f"experiments are not part of the installed package: there is no folder {str(FOLDER)!r}; "
            f"install editable in a checkout of the repository."
        )
    return sorted(path.stem for path in FOLDER.glob("*.py") if _MAIN in path.read_text(encoding="utf-8"))
