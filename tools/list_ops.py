"""Write the text of `docs/reference/ops.md`: all ops by kind, with signatures and docstrings; see `reference.py`."""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from typing import Any

import autobatch as ab
from autobatch import ops
from checkout import ROOT
from docstrings import to_markdown
from signatures import signature_of

PAGE = ROOT / "docs" / "reference" / "ops.md"
INTRODUCTION = """# All ops

The functions that cells compute with. Shapes are per node, without a batch axis. In signatures, `Value` is an array, a
number, or the result of another op or cell; `Values` is a list of values of any length; `Shapes` is the shape of a
value, or a structure of shapes. `help(ab.tanh)`, or `ab.tanh?` in Jupyter, shows the same text. [Custom
ops](../tutorials/own_op.md) is a tutorial. The examples need

```python
>>> import numpy as np
>>> import autobatch as ab
```
"""
ENDING = """
## Define an op

### ab.ops.define_op

<!-- reference: autobatch.ops.define.define_op -->
<!-- end of reference -->

### ab.ops.Op

<!-- reference: autobatch.ops.define.Op: __init__ -->
<!-- end of reference -->
"""


def public_ops() -> dict[str, Any]:
    """Return the ops that users call, by name."""
    return {name: getattr(ops, name) for name in ops.__all__ if name not in ("Op", "define_op")}


def list_ops() -> str:
    """Return the text of the page: for each module of ops a table with a line for each op, then a section for each."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, op in public_ops().items():
        kinds[op.__module__].append(name)
    return INTRODUCTION + "".join(_list_kind(module, kinds[module]) for module in sorted(kinds)) + ENDING


def _list_kind(module: str, names: list[str]) -> str:
    """Write the table of one kind of ops, and a section for each."""
    title = re.split("[:.,]", sys.modules[module].__doc__ or module)[0]
    lines = [f"| [`{_full_name(name)}`](#{_full_name(name).replace('.', '')}) | {_summary(name)} |\n" for name in names]
    return f"\n## {title}\n\n| op | result |\n|---|---|\n{''.join(lines)}{''.join(map(_describe, names))}"


def _full_name(name: str) -> str:
    return f"ab.{name}" if name in ab.__all__ else f"ab.ops.{name}"


def _summary(name: str) -> str:
    return " ".join((inspect.getdoc(getattr(ops, name)) or "").split("\n\n")[0].split()).replace("|", "\\|")


def _describe(name: str) -> str:
    """Write the section of an op: its signature and its docstring."""
    op = getattr(ops, name)
    called = signature_of(_full_name(name), op)
    return f"\n### {_full_name(name)}\n\n```python\n{called}\n```\n\n{to_markdown(op.__doc__)}"
