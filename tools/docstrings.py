"""Convert docstrings to Markdown."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent

SECTION = re.compile(r"^(Args|Attributes(?:, [^:\n]+)?|Raises|Returns|Yields):\n((?:    .*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
FIELD = re.compile(r"^(Cost|Gradient|Shapes|Source): (.*\n(?: +.*\n)*)", re.MULTILINE)
LIST = re.compile(r"^((?! *- | {2,}).+\n)(?= *- )", re.MULTILINE)
EXAMPLE = re.compile(r"(?:^>>>.*\n(?:.+\n)*\n?)+", re.MULTILINE)
CODE = re.compile(r"(`+[^`]*`+)")
NUMBER = re.compile(r"^( *\d+)\.(?= )", re.MULTILINE)
SPECIAL = re.compile(r"(?<!\w)\*+(?=\w)|<(?=\w)|__")


def to_markdown(doc: str) -> str:
    """Convert a docstring to Markdown: sections become lists, fields paragraphs, and examples code blocks."""
    text = inspect.cleandoc(doc) + "\n"
    examples = [f"```python\n{found.rstrip()}\n```\n" for found in EXAMPLE.findall(text)]
    text = escape(EXAMPLE.sub("\0\n", text))
    text = SECTION.sub(_write_section, text)
    text = FIELD.sub(_write_field, text)
    text = LIST.sub(r"\1\n", text)
    for example in examples:
        text = text.replace("\0", example, 1)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _write_field(found: re.Match[str]) -> str:
    return f"\n**{found[1]}:** {re.sub('^ +', '', found[2], flags=re.MULTILINE)}"


def _write_section(found: re.Match[str]) -> str:
    """Write a section of a docstring: `Returns` and `Yields` as text, others as a list of their entries."""
    title, body = found[1], dedent(found[2]).strip()
    if title in ("Returns", "Yields"):
        return f"**{title}:** {body}\n\n"
    lines = []
    for line in body.splitlines():
        if line.startswith("    ") or not line:
            lines.append(f"  {line.strip()}".rstrip())
        else:
            lines.append(f"- {ENTRY.sub(_write_names, line)}")
    return f"**{title}:**\n\n" + "\n".join(lines) + "\n\n"


def _write_names(found: re.Match[str]) -> str:
    return ", ".join(f"`{name}`" for name in found[1].replace("\\", "").split(", ")) + ": "


def escape(text: str) -> str:
    """Escape text so that Markdown finds no emphasis, tags and numbered lists outside code."""
    parts = CODE.split(NUMBER.sub(r"\1\\.", text))
    return "".join(part if i % 2 else SPECIAL.sub(_quote, part) for i, part in enumerate(parts))


def _quote(found: re.Match[str]) -> str:
    return "".join(f"\\{character}" for character in found[0])
