"""Copies of the checkout in private folders."""

from __future__ import annotations

import shutil
from pathlib import Path

from checkout import PACKAGE, ROOT

BESIDE_THE_PACKAGE = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", ".gitignore")
NATIVE = ROOT / "native"


def copy_checkout(place: Path, *more: str) -> Path:
    """Copy the contents of the archives, and more files or folders, to `place/autobatch`; return this folder."""
    tree = place / "autobatch"
    tree.mkdir(parents=True)
    for path in (PACKAGE, NATIVE, *(ROOT / name for name in (*BESIDE_THE_PACKAGE, *more))):
        if path.is_dir():
            shutil.copytree(path, tree / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, tree)
    return tree
