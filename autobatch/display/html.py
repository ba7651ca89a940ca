"""Write lines, tables and pictures as HTML for notebooks, without scripts or style sheets.

Text is escaped, and inherits the colour of the page, so that it is readable on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

FONT = 11  # font size in pictures, in pixels
LETTER = 6.7  # width of a letter of that size, in pixels
COLOURS = (
    "#4c78a8", "#e8892b", "#54a24b", "#c95a8c", "#8a6fc4", "#3fa7a3", "#b0893a", "#d65f5f", "#7a8793", "#6c8f2f",
)  # fmt: skip


def colour_of(number: int) -> str:
    """Return the colour of a type; colours repeat after ten types."""
    return COLOURS[number % len(COLOURS)]


def write_lines(lines: Iterable[str]) -> str:
    """Write lines of text one below the other, without indentation."""
    return "".join(f"<div>{escape(line.strip())}</div>" for line in lines)


def write_heading(name: str, about: str) -> str:
    """Write a name in bold, and a description."""
    return f"<div><b>{escape(name)}</b>: {escape(about)}</div>"


def write_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table with left-aligned text in the first column and right-aligned numbers in the others."""

    def write_row(cells: Sequence[object], tag: str) -> str:
        sides = ["left", *["right"] * (len(cells) - 1)]
        return "".join(
            f'<{tag} style="text-align:{side}">{escape(str(cell))}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )

    body = "".join(f"<tr>{write_row(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{write_row(header, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def write_fixed(text: str) -> str:
    """Write preformatted text."""
    return f"<pre>{escape(text)}</pre>"


def fold(summary: str, inside: str) -> str:
    """Write HTML that is hidden behind a summary line until the line is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def write_picture(width: float, height: float, parts: Iterable[str]) -> str:
    """Write an SVG picture; sizes are in pixels. It shrinks with the page, as long as its text stays readable."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:max(100%,34rem);height:auto" font-family="monospace" '
        f'font-size="{FONT}" fill="currentColor">{"".join(parts)}</svg>'
    )


def write_label(x: float, y: float, text: str, options: str = "") -> str:
    """Write text in a picture; `y` is its baseline, and `options` are SVG attributes."""
    return f'<text x="{x:g}" y="{y:g}"{options and " " + options}>{escape(text)}</text>'


def write_hint(text: str) -> str:
    """Write the tooltip of the enclosing element."""
    return f"<title>{escape(text)}</title>"
