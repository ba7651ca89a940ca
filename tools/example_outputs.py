"""Run the example scripts, and write their output to `examples/outputs/`, which the site shows.

    python tools/example_outputs.py                   runs all
    python tools/example_outputs.py own_policy        runs one

Those for Ray are left out, because Ray's output contains times and addresses.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from checkout import ROOT

FOLDER = ROOT / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("ray_"))


def output_of(name: str) -> Path:
    """Return the file with a script's output."""
    return FOLDER / "outputs" / f"{name}.txt"


def main(names: Sequence[str]) -> None:
    """Run scripts, or all if none are named; stop at the first that fails."""
    for name in names or NAMES:
        command = (sys.executable, str(FOLDER / f"{name}.py"))
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        output_of(name).parent.mkdir(exist_ok=True)
        output_of(name).write_text(printed, encoding="utf-8")
        print(f"{output_of(name).relative_to(ROOT)} is written")


if __name__ == "__main__":
    main(sys.argv[1:])
