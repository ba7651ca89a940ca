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
from autobatch.cli.words import PathType
from autobatch.errors import DataError
from autobatch.starting import INTERRUPTED

FOLDER = Path(ab.__file__).resolve().parents[1] / "experiments"
"""Exists in a checkout only."""
UNAVAILABLE = 69
"""Exit status if this machine lacks something that a script needs (EX_UNAVAILABLE of `sysexits.h`)."""
ALL = "all"
"""Name that stands for all claims."""
_CLAIM = "run_claim(CLAIM)"
_MAIN = 'if __name__ == "__main__":'


def is_checkout() -> bool:
    """Return whether the experiments folder exists."""
    return (FOLDER / "harness.py").is_file()


@click.command(hidden=not is_checkout())
@click.argument("name", metavar="NAME|all")
@click.argument("settings", metavar="[SETTING=VALUE]...", nargs=-1)
@click.option(
    "--out",
    metavar="DIR",
    type=PathType(path_type=Path, file_okay=False),
    help="Folder for the records.  [default: experiments/results; with --quick, experiments/results/quick]",
)
@click.option(
    "--quick", is_flag=True, help="Smoke test: measure as little as possible, in under five minutes for all claims."
)
@ray_option("Measure the parts of claims concurrently, as Ray tasks; timings then mean nothing.")
def experiment(name: str, settings: tuple[str, ...], out: Path | None, quick: bool, ray: str | None) -> int:
    """Run an experiment, or measure all claims of the project.

    NAME is a script in the folder experiments/; its first lines explain its purpose and settings. It prints a table and
    writes a record of settings, code, machine, raw timings and figures. `all` measures every claim and collects them in
    one page, report.html; after an interrupt, the same command resumes.

    \b
    Examples:
      autobatch experiment all --quick
      autobatch experiment all --out records
      autobatch experiment batches only=tree-lstm sizes=32,256 --out records
      autobatch experiment batches --out records --ray
    """
    names = list_experiments()
    if name not in names:
        raise DataError(f"NAME must be one of {', '.join(names)}, got {name!r}.")
    if ray is not None:
        _require_parts(name)
    words = [*settings, *([] if out is None else [f"out={out.resolve()}"]), *(["quick=True"] if quick else [])]
    words += [] if ray is None else [f"ray={ray}"]
    return run_script(name, words)


def run_script(name: str, words: Sequence[str]) -> int:
    """Run a script of the folder in its own process group, which Ctrl-C ends; return its exit status."""
    # In its own session, the script gets no Ctrl-C of the terminal; the handler ends the whole group with SIGTERM, and
    # the wait continues until the script has ended.
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
    click.echo("\nautobatch: interrupted; written records are complete, and claims will resume from there.", err=True)
    return INTERRUPTED


def _require_parts(name: str) -> None:
    """Raise an error if an experiment cannot be divided into Ray tasks, or Ray is not installed."""
    claims = [one for one in list_experiments() if _CLAIM in (FOLDER / f"{one}.py").read_text(encoding="utf-8")]
    if name != ALL and name not in claims:
        raise DataError(f"NAME must be one of {ALL}, {', '.join(claims)} with --ray, got {name}; leave --ray out.")
    require_ray(f"experiment {name}")


def list_experiments() -> list[str]:
    """List the runnable scripts in the folder of experiments.

    Raises:
        DataError: autobatch does not run from a checkout.
    """
    if not is_checkout():
        raise DataError(
            f"experiments are not part of the installed package: the folder {str(FOLDER)!r} does not exist; make an "
            f"editable install from a checkout of the repository."
        )
    return sorted(path.stem for path in FOLDER.glob("*.py") if _MAIN in path.read_text(encoding="utf-8"))
