"""Paths of this checkout and its modules."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "autobatch"


def module_files() -> dict[str, Path]:
    """Map the dotted name of every module and package in the checkout to its file, sorted by name."""
    files = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    return dict(sorted(files.items()))
