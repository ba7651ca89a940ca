"""Where the modules of this checkout lie, read from pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def setuptools_table() -> dict[str, Any]:
    """Read `[tool.setuptools]`: the listed packages and the folders they come from."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        table: dict[str, Any] = tomllib.load(file)["tool"]["setuptools"]
    return table


def package_dirs() -> dict[str, Path]:
    """Map each mapped package to its folder: `autobatch.policies` to `policies/`, and so on."""
    return {package: ROOT / folder for package, folder in setuptools_table()["package-dir"].items()}


def module_files() -> dict[str, Path]:
    """Map the dotted name of every module and package in the checkout to its file, sorted by name."""
    files = {}
    for package, folder in package_dirs().items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            files[".".join((package, *parts)).removesuffix(".__init__")] = path
    return dict(sorted(files.items()))
