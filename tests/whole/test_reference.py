"""The reference describes every public name and every argument, as the package does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Literal

import autobatch as ab
import autobatch.torch as abt
from checkout import ROOT
from describing import find, members_of
from docstrings import to_markdown
from helpers.runs.ways import each
from list_ops import public_ops
from reference import PAGES, Name, names_in, renew
from signatures import signature_of

PUBLIC = {
    **{f"ab.{name}": getattr(ab, name) for name in ab.__all__},
    **{f"{folder}.{name}": getattr(find(path), name) for folder, path in (
        ("ab.distributed", "autobatch.distributed"), ("ab.optim", "autobatch.optim"), ("ab.ops", "autobatch.ops"),
        ("ab.policies", "autobatch.policies"), ("ab.policies.env", "autobatch.policies.env"),
        ("ab.readers", "autobatch.readers"), ("ab.serving", "autobatch.serving"),
    ) for name in find(path).__all__},
    **{f"ab.testing.{name}": getattr(ab.testing, name) for name in ab.testing.__all__},
    **{f"abt.{name}": getattr(abt, name) for name in ("as_torch", "batched", "cell", "check_batched")},
}  # fmt: skip
SHOWN = [name for page in PAGES for name in names_in(page.read_text(encoding="utf-8"))]
CODE = re.compile(r"`[^`]+`")


@each("page", PAGES)
def test_a_page_says_what_the_package_says(page: Path) -> None:
    """A tool writes the pages; run it again after changing a signature or a docstring."""
    same = page.read_text(encoding="utf-8") == renew(page)
    assert same, f"{page.relative_to(ROOT)} is not up to date; write it anew: python tools/reference.py"


def test_every_public_name_is_in_the_reference() -> None:
    known = {id(find(shown.path)) for shown in SHOWN} | {id(op) for op in public_ops().values()}
    known |= {id(x) for x in vars(ab.errors).values()}
    missing = [name for name, x in PUBLIC.items() if id(x) not in known and not inspect.ismodule(x)]
    assert not missing


@each("shown", SHOWN)
def test_a_heading_is_the_name_that_users_write(shown: Name) -> None:
    if shown.name.startswith(("ab.", "abt.")):
        assert PUBLIC[shown.name] is find(shown.path)


def test_every_argument_is_documented() -> None:
    """In a list of arguments, or by name in code; arguments of ops, which are letters, anywhere in the docstring."""
    missing = [
        f"{path}({name}=)"
        for shown in SHOWN
        for path, function in members_of(shown.path, shown.members).items()
        for name in inspect.signature(function).parameters
        if name not in ("self", "cls") and not is_documented(name, inspect.getdoc(function) or "")
    ]
    missing += [
        f"ab.{op}({name}=)"
        for op, function in public_ops().items()
        for name in inspect.signature(function).parameters
        if not re.search(rf"\b{name}\b", function.__doc__)
    ]
    assert not missing, "give them a line under Args: of the docstring"


def is_documented(name: str, doc: str) -> bool:
    """Return whether a docstring has an entry for a name, or mentions it in code."""
    entry = rf"^ +(?:\*{{0,2}}\w+, )*\*{{0,2}}{name}(?:, \*{{0,2}}\w+)*: "
    return bool(re.search(entry, doc, re.MULTILINE)) or any(re.search(rf"\b{name}\b", x) for x in CODE.findall(doc))


def test_signatures_are_written_as_in_the_source() -> None:
    def draw(x: Any, /, *rest: int, size: float = 1e-3, kind: Literal["a", "b"] = "a", **options: Any) -> list[Any]:
        return [x, *rest, size, kind, options]

    def plain(x, /, *rest, size=1e-3, kind="a", **options):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN002, ANN003, ANN202
        return [x, *rest, size, kind, options]

    assert signature_of("plain", plain) == 'plain(x, /, *rest, size=1e-3, kind="a", **options)'
    assert signature_of("draw", draw).splitlines() == [
        "draw(",
        "    x: Any,",
        "    /,",
        "    *rest: int,",
        "    size: float = 1e-3,",
        '    kind: Literal["a", "b"] = "a",',
        "    **options: Any,",
        ") -> list[Any]",
    ]


DOCSTRING = """Count, at most
    1. of each.

    Args:
        x, y: arrays (*shape) and `*more`, which
            differ.

    Returns:
        A <number>.

    It is the sum of
      - one,
        and
      - two.

    Cost: O(n), or
        more.

    >>> 1 + 1
    2
    """
MARKDOWN = """Count, at most
1\\. of each.

**Args:**

- `x`, `y`: arrays (\\*shape) and `*more`, which
  differ.

**Returns:** A \\<number>.

It is the sum of

  - one,
    and
  - two.

**Cost:** O(n), or
more.

```python
>>> 1 + 1
2
```
"""


def test_docstrings_become_markdown() -> None:
    assert to_markdown(DOCSTRING) == MARKDOWN
