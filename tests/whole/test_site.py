"""The site builds without warnings, its search finds names, and names in prose are links."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from checkout import ROOT

pytestmark = pytest.mark.slow
ASK = ROOT / "tests" / "helpers" / "ask_search.js"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    if find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed: pip install '.[docs]'")
    place = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", place)
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return place


def ask(site: Path, queries: list[str]) -> dict[str, list[list[str]]]:
    """Run the browser's search in Node.js; return the sections that each query finds, by page."""
    if shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    command = ("node", str(ASK), str(site))
    found = subprocess.run(command, input="\n".join(queries), capture_output=True, text=True, check=True)
    return dict(zip(queries, map(json.loads, found.stdout.splitlines()), strict=True))


def read(site: Path, address: str) -> str:
    """Return the page at an address; the anchor must exist."""
    page, _, anchor = address.partition("#")
    text = (site / page).read_text(encoding="utf-8")
    assert not anchor or f'id="{anchor}"' in text
    return text


def test_the_search_finds_names_first(site: Path) -> None:
    from website.names import Names

    meant = dict[str, set[str]]()
    for name, (page, anchor) in Names.read().described.items():
        owner, _, short = name.rpartition(".")
        is_member = owner.rpartition(".")[2][:1].isupper()
        if name.startswith("ab.") and not is_member:
            for query in (name, short):
                meant.setdefault(query.lower(), set()).add(f"{page.removesuffix('.md')}.html#{anchor}")
    found = ask(site, list(meant))
    missed = {query for query, pages in found.items() if not pages or pages[0][0] not in meant[query]}
    assert len(meant) > 300
    assert len(missed) < 0.03 * len(meant), missed
    assert not missed & {"cross_entropy", "value_and_grad", "adam", "top_k", "where", "fold", "ab.optim.sgd"}


def test_every_address_of_a_name_exists(site: Path) -> None:
    index = read(site, "reference/names.html")
    links = re.findall(r'<td><a href="([^"]+)"><code>|<a href="([^"]+)">autobatch/', index)
    assert len(links) > 500
    for described, source in links:
        read(site, (described and f"reference/{described}") or source.removeprefix("../"))


def test_prose_links_names_to_the_reference(site: Path) -> None:
    page = read(site, "tutorials/learn_a_policy.html")
    link = '<a class="name" href="../reference/training.html#batchedlearn_policy"><code>learn_policy</code></a>'
    assert link in page


def test_decisions_and_sources_are_not_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert not [doc for doc in index["docs"] if doc["location"].startswith(("decisions/", "source/", "releasing"))]


def test_examples_are_shown_with_their_output(site: Path) -> None:
    assert "lower bound" in read(site, "examples/own_policy.html").rpartition("Output")[2]
    assert "<svg" in read(site, "examples/notebooks/policies.html")
    assert 'href="sentiment_trees.html"' in read(site, "examples/index.html")
