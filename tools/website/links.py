"""Convert links between documents of the checkout to links between pages of the site."""

from __future__ import annotations

import posixpath
import re

LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
BLOCK = re.compile(r"(^ *(`{3,}).*?^ *\2$)", re.MULTILINE | re.DOTALL)


def rewrite_links(markdown: str, page: str) -> str:
    """Rewrite links between documents of the checkout as links between pages of the site, outside code."""
    here = place_in_checkout(page)

    def rewrite(found: re.Match[str]) -> str:
        target = found[2]
        if "://" in target or target.startswith(("mailto:", "data:")):
            return found[0]
        place = page_of(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)))
        return found[0] if place is None else f"{found[1]}{relative(place, page)}{found[3]}"

    parts = BLOCK.split(markdown)  # each code block is followed by its fence
    return "".join(LINK.sub(rewrite, part) if i % 3 == 0 else part for i, part in enumerate(parts) if i % 3 != 2)


def relative(place: str, page: str) -> str:
    """Return the link from a page to another."""
    return posixpath.relpath(place, posixpath.dirname(page) or ".")


def page_of(path: str) -> str | None:
    """Return the page or picture that shows a file of the checkout, None if the site has none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in ("examples", "examples/README.md"):
        return "examples/index.md"
    if path.startswith("examples/") and path.endswith((".py", ".ipynb")):
        return posixpath.splitext(path)[0] + ".md"
    if path.startswith("experiments/results/") and path.endswith(".png"):
        return "figures/" + path.removeprefix("experiments/results/")
    return None


def place_in_checkout(page: str) -> str:
    """Return the path of the file that a page shows; for generated pages, the page's path."""
    if page == "examples/index.md":
        return "examples/README.md"
    return page if page.startswith("examples/") else f"docs/{page}"
