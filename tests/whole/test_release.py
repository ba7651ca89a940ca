"""A release has the same name, version and contents in all files that mention them."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version

import autobatch as ab
from autobatch.release import NAME, VERSION, pip_install
from checkout import ROOT
from list_public_names import FILE, list_public_names

PAGES = sorted(ROOT.glob("docs/**/*.md"))
ASKED_FOR = re.compile(r"(?:(?<=pip install )|(?<=pip install ['\"]))autobatch[\w-]*|\bautobatch[\w-]*(?=\\?\[[a-z])")
WHEEL = re.compile(r"autobatch_nn-(\d[\w.]*)-cp3")
FOLDERS = ("autobatch", "docs", "examples", "experiments", "native", "tests", "tools")


def test_the_name_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == NAME
    assert set(project["scripts"]) == {"autobatch"}
    assert f"'{NAME}[torch]'" in pip_install("torch")


def test_nothing_asks_pip_for_another_name() -> None:
    texts = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.[pm][yd]"))]
    named = [(path, name) for path in texts for name in ASKED_FOR.findall(path.read_text(encoding="utf-8"))]
    assert [(path, name) for path, name in named if name != NAME] == []


def test_the_version_is_in_one_place_and_the_changelog_begins_with_it() -> None:
    assert ab.__version__ == version(NAME) == VERSION
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = [heading for heading in re.findall(r"^## (\S+)", changes, re.MULTILINE) if heading != "Unreleased"]
    assert versions[0] == VERSION
    longest = max(section.count("\n") for section in changes.split("\n## "))
    assert longest <= 60, "the changes of one version are read in three minutes"
    assert {name for page in PAGES for name in WHEEL.findall(page.read_text("utf-8"))} == {VERSION}


def test_no_public_name_comes_or_goes_unseen() -> None:
    recorded, found = FILE.read_text(encoding="utf-8").splitlines(), list_public_names()
    gone = sorted(set(recorded) - set(found))
    assert not gone, (
        "public names are gone. Keep each for one minor version with a warning (docs/compatibility.md); one whose time "
        "is over is named in CHANGELOG.md, and python tools/list_public_names.py writes the list anew."
    )
    assert recorded == found, "new public names: python tools/list_public_names.py writes the list anew"
