"""Hooks of MkDocs: what the site shows in another way than the pages in the checkout, which are whole by themselves.

A picture that lies outside `docs/`, beside the records it was drawn from, gets a copy in `pictures/`. Examples with
prompts are marked as such, so that the button that copies them leaves prompts and results out (`docs/site.css`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

OUTSIDE = re.compile(r"(!\[[^\]]*\]\()((?:\.\./)+experiments/results/([\w.-]+\.png))\)")
EXAMPLE = re.compile(r"^( *```)python(?=\n *>>> )", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures that pages show to the files of the site."""
    for page in list(files.documentation_pages()):
        path = Path(page.abs_src_path)
        for _, target, name in OUTSIDE.findall(path.read_text(encoding="utf-8")):
            copy = f"pictures/{name}"
            if copy not in files.src_uris:
                files.append(File.generated(config, copy, abs_src_path=str((path.parent / target).resolve())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show the copies, and mark examples."""
    up = "../" * page.file.src_uri.count("/")
    return EXAMPLE.sub(r"\1pycon", OUTSIDE.sub(rf"\1{up}pictures/\3)", markdown))
