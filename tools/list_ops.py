"""Write `docs/ops.md`, the list of all ops by kind, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from typing import Any

import autobatch as ab
from autobatch import ops
from checkout import ROOT

PAGE = ROOT / "docs" / "ops.md"
INTRODUCTION = """# All ops

What a cell's body computes with. Shapes are per node, without a batch axis. `help(ab.tanh)`, or `ab.tanh?` in Jupyter,
shows the shapes, the gradient and an example of an op.
"""


def public_ops() -> dict[str, Any]:
    """The ops that users call, by name."""
    return {name: getattr(ops, name) for name in ops.__all__ if name not in ("Op", "define_op")}


def list_ops() -> str:
    """The text of the page: a table for each module of ops, with a line for each op."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, op in public_ops().items():
        full_name = f"ab.{name}" if name in ab.__all__ else f"ab.ops.{name}"
        summary = " ".join((inspect.getdoc(op) or "").split("\n\n")[0].split()).replace("|", "\\|")
        kinds[op.__module__].append(f"| `{full_name}{_arguments(op)}` | {summary} |\n")
    head = "\n\n| op | result |\n|---|---|\n"
    return INTRODUCTION + "".join(f"\n## {_title(module)}{head}{''.join(kinds[module])}" for module in sorted(kinds))


def _arguments(op: Any) -> str:
    """The arguments of an op without their types, in brackets."""
    arguments = inspect.signature(op).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in arguments]))


def _title(module: str) -> str:
    """What the docstring of a module names first."""
    return re.split("[:.]", sys.modules[module].__doc__ or module)[0]


if __name__ == "__main__":
    PAGE.write_text(list_ops(), encoding="utf-8")
