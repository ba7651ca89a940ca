"""Update the pages of `docs/reference/`: signatures, arguments and shapes, from the package itself.

    python tools/reference.py

A page has each name between two marks, under a heading that is the name as users write it. The first mark says where
the name is defined and, for a class, which members are shown; `__init__` shows the constructor:

    ## ab.optim.SGD

    <!-- reference: autobatch.optim.sgd.SGD: __init__ -->
    <!-- end of reference -->

The text around the marks is written by hand, except in `ops.md`, which has all ops and is generated as a whole. A test
fails while a page does not match the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import list_ops
from checkout import ROOT
from describing import describe

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
MARK = re.compile(
    r"^(#+) ([^\n]+)\n\n(<!-- reference: ([\w.]+)(?:: ([\w, ]+))? -->\n).*?(<!-- end of reference -->)$",
    re.MULTILINE | re.DOTALL,
)


class Name(NamedTuple):
    """A name on a page: as users write it, where it is defined, and the members that are shown."""

    name: str
    path: str
    members: tuple[str, ...]


def names_in(text: str) -> list[Name]:
    """Return the names on a page, in their order."""
    return [_name(found) for found in MARK.finditer(text)]


def renew(page: Path) -> str:
    """Return the new text of a page."""
    text = list_ops.list_ops() if page == list_ops.PAGE else page.read_text(encoding="utf-8")
    return MARK.sub(_write, text)


def _name(found: re.Match[str]) -> Name:
    return Name(found[2], found[4], tuple(found[5].split(", ")) if found[5] else ())


def _write(found: re.Match[str]) -> str:
    heading, name, opening, closing = found[1], found[2], found[3], found[6]
    return f"{heading} {name}\n\n{opening}\n{describe(*_name(found), level=len(heading))}\n{closing}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renew(page), encoding="utf-8")
