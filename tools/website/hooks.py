"""Hooks of MkDocs, which add the site's generated parts to `docs/`.

- Pages of the examples, the sources and the index of names (`pages.py`, `names.py`), and pictures of results.
- Links between documents of the checkout lead to the pages of the site, and names such as `ab.tanh` to the reference.
- The header shows the version, and the address of the repository if `origin` has one.
- The search excludes decisions, sources and the release checklist, and ranks names first.
- Examples with prompts are marked, so that the copy button omits prompts and results (`site.css`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import Files

sys.path.insert(0, str(Path(__file__).parents[1]))  # MkDocs runs this file by its path

from autobatch.release import VERSION
from checkout import ROOT
from website.links import rewrite_links
from website.names import Names
from website.pages import list_pages

EXAMPLE = re.compile(r"^( *```)python(?=\n *>>> )", re.MULTILINE)
UNSEARCHED = ("decisions/", "source/", "releasing.md")
OPTION = re.compile(r"<code>(?=--)")
ADDRESS = re.compile(r"https?://|git@([\w.-]+):")

_names = Names()


def on_config(config: Any) -> None:
    """Show the version, and the address of the repository if it is known."""
    config.site_name = f"{config.site_name} {VERSION}"
    command = ("git", "-C", str(ROOT), "remote", "get-url", "origin")
    address = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if config.repo_url is None and ADDRESS.match(address):
        config.repo_url = ADDRESS.sub(lambda found: f"https://{found[1]}/" if found[1] else found[0], address)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    global _names
    _names = Names.read()
    for file in list_pages(config, _names):
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page, and mark its examples."""
    place = page.file.src_uri
    if place.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    return EXAMPLE.sub(r"\1pycon", rewrite_links(markdown, place))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Link names to the reference, and mark names of options."""
    html = OPTION.sub('<code class="option">', html)
    return _names.link(html, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Rank names before prose in the search, and short names before long ones that begin with them."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    boosts = _names.boosts()
    for section in index["docs"]:
        if boost := boosts.get(section["location"]):
            section["boost"] = boost
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
