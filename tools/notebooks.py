"""Run the example notebooks, and write their outputs or compare them with the written ones.

    python tools/notebooks.py                  runs all, and writes them
    python tools/notebooks.py --check trees    runs one, and compares; the exit status is 1 if something differs

Notebooks are run from the first cell to the last, in a kernel of this Python. Standard error is left out, because it
depends on the machine, for example if compiling takes long.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import nbformat
from nbclient import NotebookClient

from checkout import ROOT

FOLDER = ROOT / "examples" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
TIMEOUT_S = 600  # per cell
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read_notebook(name: str) -> Any:
    """Read a notebook of the examples, with its outputs."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def run_notebook(name: str) -> Any:
    """Run a notebook of the examples in a new kernel. Return it with its new outputs.

    Raises:
        CellExecutionError: a cell raised an error.
    """
    notebook = read_notebook(name)
    options = {"timeout": TIMEOUT_S, "coalesce_streams": True, "extra_arguments": ["--log-level=ERROR"]}
    with tempfile.TemporaryDirectory() as folder:
        apart = {"IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder}
        NotebookClient(notebook, kernel_name="python3", **options).execute(env={**os.environ, **apart}, cwd=folder)
    return tidy(notebook)


def tidy(notebook: Any) -> Any:
    """Remove what depends on the machine and the time, in place. Return the notebook."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def write_notebook(name: str, notebook: Any) -> None:
    """Write a notebook of the examples."""
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")


def list_outputs(notebook: Any) -> list[str]:
    """Return the output of each code cell: its text, its tables and its pictures."""
    return ["".join(map(_show_output, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code"]


def _show_output(output: Mapping[str, Any]) -> str:
    """Format an output without the bytes of pictures, which depend on the version of Matplotlib."""
    if output["output_type"] == "stream":
        return str(output["text"])
    return repr(sorted((kind, "a picture" if kind == "image/png" else x) for kind, x in output["data"].items()))


def check_notebook(name: str) -> bool:
    """Run a notebook, and print the cells whose output differs from the written one. Return whether there are none."""
    written, found = list_outputs(read_notebook(name)), list_outputs(run_notebook(name))
    differing = [number for number, (a, b) in enumerate(zip(written, found, strict=True)) if a != b]
    for number in differing:
        print(f"{name}, code cell {number}: expected\n{written[number]}\ngot\n{found[number]}")
    return not differing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool. Return its exit status."""
    parser = argparse.ArgumentParser(description="Run the notebooks of the examples, and write their outputs.")
    parser.add_argument("names", nargs="*", type=_to_name, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    given = parser.parse_args(arguments)
    if given.check:
        are_equal = [check_notebook(name) for name in given.names]
        return int(not all(are_equal))
    for name in given.names:
        write_notebook(name, run_notebook(name))
        print(f"examples/notebooks/{name}.ipynb is written")
    return 0


def _to_name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(NAMES)}, got {text!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
