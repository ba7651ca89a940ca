"""Documents are consistent: links have targets, pages are in the navigation, public names are in the reference."""

from __future__ import annotations

import re
from pathlib import Path

from checkout import ROOT
from website.links import page_of

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "experiments").glob("*.md")), *PAGES]
BLOCK = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED = re.compile(r"\bdocs/[\w/-]+\.(?:md|png)")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as made by MkDocs and GitHub."""
    headings = HEADING.findall(BLOCK.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    lost = []
    for page in DOCUMENTS:
        for link in LINK.findall(CODE.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            is_lost = not target.exists() or (anchor and anchor not in anchors(target))
            leaves = page in PAGES and page_of(target.relative_to(ROOT).as_posix()) is None  # the site lacks it
            if "://" not in link and (is_lost or leaves):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert not lost


def test_every_document_that_code_or_prose_names_is_there() -> None:
    files = [*DOCUMENTS, *(path for folder in ("autobatch", "experiments", "tests", "tools") for path in
                           (ROOT / folder).rglob("*.py"))]  # fmt: skip
    lost = {
        (str(path.relative_to(ROOT)), name)
        for path in files
        for name in NAMED.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert not lost


def test_every_page_is_in_the_navigation_once() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    listed = [name for name in re.findall(r"[\w/-]+\.md", navigation) if (DOCS / name).exists()]  # others are generated
    pages = [str(path.relative_to(DOCS)) for path in PAGES]
    assert sorted(listed) == [name for name in pages if not name.startswith(("decisions/", "releasing"))]


def test_every_decision_is_listed_once() -> None:
    listed = re.findall(r"\(([\w-]+\.md)\)", (DOCS / "decisions" / "README.md").read_text(encoding="utf-8"))
    assert sorted(["README.md", *listed]) == sorted(path.name for path in PAGES if path.parent.name == "decisions")
