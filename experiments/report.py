"""Collect the claims in one page, `report.html`, which contains the figures and needs no network.

python experiments/report.py --out DIR
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from autobatch.cli.ending import run_process
from autobatch.errors import AutobatchError, DataError
from claims import NAMES, Claim, Records, load_claim, require, show
from harness import read_words
from records import RESULTS, in_json, origins, write_whole

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; }
figure { margin: 1rem 0; } .scroll, figure { overflow-x: auto; } img { width: 100%; min-width: 34rem; height: auto; }
figcaption { display: none; font-weight: 600; } @media (max-width: 40rem) { figcaption { display: block; } }
table { border-collapse: collapse; font-size: 0.8rem; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; max-width: min(50rem, 100vw - 2rem); }
th, td { padding: 0.15rem 0.6rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
.numbers td { white-space: nowrap; }
.origin { color: #555; font-size: 0.85rem; } .stale { color: #a33; font-weight: 600; } nav li { margin: 0.2rem 0; }
"""


def read_folder(words: Sequence[str]) -> Path:
    """Read the folder of the records from the command line's words.

    Raises:
        AutobatchError: a word is not understood.
    """
    given = read_words(words)
    folder = Path(given.pop("out", RESULTS))
    if given:
        raise AutobatchError(
            f"the only setting of report is out=DIR, the folder of the records, got {next(iter(given))!r}."
        )
    return folder


def write_report(folder: Path) -> Path:
    """Write the report of the records in a folder. Return its path.

    Raises:
        DataError: the folder has no record of any claim.
    """
    require(("matplotlib",), "writing the report")
    found = [(claim, records) for claim in map(load_claim, NAMES) if (records := claim.records(folder))]
    if not found:
        raise DataError(f"{str(folder)!r} must hold records of claims; autobatch experiment all --out DIR writes them.")
    messages = [show(claim, folder) for claim, _ in found]
    links = "\n".join(f'<li><a href="#{claim.name}">{escape(claim.heading)}</a></li>' for claim, _ in found)
    sections = "\n".join(
        to_section(claim, records, folder, message) for (claim, records), message in zip(found, messages, strict=True)
    )
    place = folder / "report.html"
    write_whole(
        place,
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>autobatch: claims and '
        f"measurements</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>autobatch: claims and "
        f"measurements</h1>\n<nav><ol>\n{links}\n</ol></nav>\n{sections}\n</body>\n</html>\n",
    )
    return place


def to_section(claim: Claim[Any], records: Records, folder: Path, message: str) -> str:
    """Write a claim's section: results, the figure with its title for narrow screens, the literature and the tables."""
    image = base64.b64encode((folder / f"{claim.name}.png").read_bytes()).decode()
    stale = [record.name for record in records.values() if record.is_stale]
    missing = [part for part in claim.parts if part not in records]
    parts = [
        f'<h2 id="{claim.name}">{escape(claim.heading)}</h2>',
        f"<p>{escape(claim.claimed)}</p>",
        f"<p>{escape(claim.see(records))}</p>",
        f"<figure><figcaption>{escape(message)}</figcaption>"
        f'<img src="data:image/png;base64,{image}" alt="{escape(message or claim.heading)}"></figure>',
    ]
    if all(record.settings == in_json(claim.quick) for record in records.values()):
        parts.append('<p class="stale">Measured with --quick: a smoke test, whose figures are meaningless.</p>')
    if stale:
        parts.append(
            f'<p class="stale">The code has changed since these were measured: {escape(", ".join(stale))}.</p>'
        )
    if missing:
        parts.append(f'<p class="origin">Not measured here: {escape(", ".join(missing))}.</p>')
    if claim.published:
        parts += ["<h3>Compared with the literature</h3>", _scroll(claim.beside(records).html("words"))]
        parts.append(f"<p>{escape(claim.disagreement)}</p>")
    parts += [_scroll(table.html()) for table in claim.tabulate(records)]
    return "\n".join([*parts, f'<p class="origin">{escape(origins(records.values()))}</p>'])


def _scroll(table: str) -> str:
    return f'<div class="scroll">{table}</div>'


if __name__ == "__main__":
    run_process(lambda: print(write_report(read_folder(sys.argv[1:]))))
