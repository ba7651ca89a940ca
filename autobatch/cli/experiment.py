"""`autobatch experiment`: run the scripts that measured the figures in the documentation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import click

import autobatch as ab
from autobatch.cli.on_ray import ray_option, require_ray
from autobatch.cli.places import PathType
from autobatch.errors import DataError
from autobatch.starting import INTERRUPTED

FOLDER = Path(ab.__file__).resolve().parents[1] / "experiments"
"""In a checkout; an installed package has none."""
UNAVAILABLE = 69
"""The exit status of a script that needs what this machine does not have, as of `sysexits.h`."""
ALL = "all"
"""Measures all claims."""
_CLAIM = "run_claim(CLAIM)"
_MAIN = 'if __name__ == "__main__":'


def is_checkout() -> bool:
    """Whether the experiments folder exists."""
    return (FOLDER / "harness.py").is_file()


@click.command(hidden=not is_checkout())
@click.argument("name", metavar="NAME|all")
@click.argument("settings", metavar="[SETTING=VALUE]...", nargs=-1)
@click.option(
    "--out",
    metavar="DIR",
    type=PathType(path_type=Path, file_okay=False),
    help="Where the records go.  [default: experiments/results; with --quick, its folder quick]",
)
@click.option("--quick", is_flag=True, help="Measure so little that all claims together take less than five minutes.")
@ray_option(
    "all and claims: measure parts as tasks of Ray, beside each other. What is counted is the same; timings are worth "
    "nothing then."
)
def experiment(name: str, settings: tuple[str, ...], out: Path | None, quick: bool, ray: str | None) -> int:
    """Run an experiment of the checkout, or all claims of the project.

    NAME is a script in the folder experiments/, whose first lines explain its purpose and its settings. It prints a
    table and writes a record of settings, code, machine, raw timings and figures. All measures every claim and gathers
    them in one page, report.html; interrupted, the same command goes on where it was.

    \b
    Examples:
      autobatch experiment all --quick
      autobatch experiment all --out records
      autobatch experiment batches only=tree-lstm sizes=32,256 --out records
      autobatch experiment batches --out records --ray
    """
    names = list_experiments()
    if name not in names:
        raise DataError(f"there is no experiment {name!r}; there are {', '.join(names)}.")
    if ray is not None:
        _require_parts(name)
    words = [*settings, *([] if out is None else [f"out={out.resolve()}"]), *(["quick=True"] if quick else [])]
    words += [] if ray is None else [f"ray={ray}"]
    return run_script(name, words)


def run_script(name: str, words: Sequence[str]) -> int:
    """Run a script of the folder in a process group of its own, which Ctrl-C ends; give its exit status."""
    process = subprocess.Popen([sys.executable, FOLDER / f"{name}.py", *words], start_new_session=True)
    interrupts: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM) if hasattr(os, "killpg") else process.terminate()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    if not interrupts:
        return status
    click.echo(
        "\nautobatch: interrupted; records that were written are complete, and claims go on from there.", err=True
    )
    return INTERRUPTED


def _require_parts(name: str) -> None:
    """Refuse to measure on Ray what has no parts; or where there is no Ray."""
    claims = [one for one in list_experiments() if _CLAIM in (FOLDER / f"{one}.py").read_text(encoding="utf-8")]
    if name != ALL and name not in claims:
        raise DataError(
            f"experiment {name} has no parts for --ray to share out; leave it out, or name {ALL}, {', '.join(claims)}."
        )
    require_ray(f"experiment {name}")


def list_experiments() -> list[str]:
    """List the scripts in the folder of experiments that run by themselves.

    Raises:
        DataError: this is no checkout.
    """
    if not is_checkout():
        raise DataError(
            f"experiments are not part of the installed package: there is no folder {str(FOLDER)!r}; "
            f"install editable in a checkout of the repository."
        )
    return sorted(path.stem for path in FOLDER.glob("*.py") if _MAIN in path.read_text(encoding="utf-8"))
