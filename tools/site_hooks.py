"""A hook of MkDocs: examples with prompts are marked as such.

So the button that copies them leaves prompts and results out (`docs/site.css`). In the checkout they are Python.
"""

from __future__ import annotations

import re
from typing import Any

EXAMPLE = re.compile(r"^( *```)python(?=\n *>>> )", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Mark the examples of a page."""
    return EXAMPLE.sub(r"\1pycon", markdown)
