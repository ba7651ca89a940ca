"""The documents hang together: links lead somewhere, pages are in the navigation, public names in the reference."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from checkout import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "experiments").glob("*.md")), *PAGES]
BLOCK = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\(\s*([^)\s]+)\s*\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAMED = re.compile(r"\bdocs/[\w/-]+\.(?:md|png)")


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as MkDocs and GitHub make them."""
    headings = HEADING.findall(BLOCK.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    lost = []
    for page in DOCUMENTS:
        for link in LINK.findall(CODE.sub("", BLOCK.sub("", page.read_text(encoding="utf-8")))):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            is_lost = not target.exists() or (anchor and anchor not in anchors(target))
            leaves = page in PAGES and DOCS not in target.parents  # the site ends at docs/
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
    listed = re.findall(r"[\w/-]+\.md", navigation)
    assert sorted(listed) == [str(path.relative_to(DOCS)) for path in PAGES]


def test_the_decisions_are_listed_in_one_order() -> None:
    listed = re.findall(r"\(([\w-]+\.md)\)", (DOCS / "decisions" / "README.md").read_text(encoding="utf-8"))
    shown = re.findall(r"decisions/([\w-]+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert shown == ["README.md", *listed]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed: pip install '.[docs]'")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path)
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "index.html").exists()
