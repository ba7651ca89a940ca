"""An extension of griffe, which reads docstrings for the reference: it makes Markdown of what is special in ours.

Docstrings end with fields of a line, such as `Cost: O(n) time.`, of which Google's style would make the titles of
boxes, and with examples, of which Markdown would make quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

FIELD = re.compile(r"^(Cost|Gradient|Shapes|Source): ", re.MULTILINE)
EXAMPLE = re.compile(r"(?:^>>>.*\n(?:.+\n)*\n?)+", re.MULTILINE)


class DocstringFields(griffe.Extension):  # type: ignore[misc]
    """Set each field apart, with its name in bold, and examples as code."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute as it is read."""
        if obj.docstring is not None:
            text = FIELD.sub(r"\n**\1:** ", obj.docstring.value + "\n")
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
