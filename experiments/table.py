"""Tables for people: text on a terminal, Markdown in documents, HTML in the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from autobatch.cli.results import format_table


@dataclass(frozen=True)
class Table:
    """Rows below a header; the first column names them."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Format it for a terminal."""
        return "\n\n".join(filter(None, (self.title, format_table(self.header, self.rows))))

    def markdown(self) -> str:
        """Format it as Markdown."""
        head, *rows = (f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (self.header, *self.rows))
        title = f"{self.title}\n\n" if self.title else ""
        return title + "\n".join((head, "|---" * len(self.header) + "|", *rows))

    def html(self, kind: str = "numbers") -> str:
        """Format it as HTML, with a class for its style."""
        head, *rows = (
            "".join(f"<{tag}>{escape(cell.replace('`', ''))}</{tag}>" for cell in cells)
            for tag, cells in (("th", self.header), *(("td", row) for row in self.rows))
        )
        caption = f"<caption>{escape(self.title)}</caption>\n" if self.title else ""
        lines = "".join(f"<tr>{row}</tr>\n" for row in rows)
        return f'<table class="{kind}">\n{caption}<tr>{head}</tr>\n{lines}</table>'
