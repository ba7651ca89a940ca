"""Run every example in a docstring or a document.

Modules are imported by their installed names; pytest's `--doctest-modules` would load second copies. Docstrings are
read from the source, to include decorated, private and nested definitions; they may use `ab` and `np` without an
import. `tests/ops/test_help.py` runs the docstrings that ops receive at run time.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from checkout import ROOT, module_files

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST  # later examples build on earlier ones
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
GENERATED = re.compile(r"<!-- reference: .*?<!-- end of reference -->", re.DOTALL)
FENCE = re.compile(r"^ *```.*$", re.MULTILINE)


def docstrings(path: Path) -> list[tuple[int, str]]:
    """Return the docstrings with examples in a source file, each with its first line, counted from 0."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    texts = ((node.body[0].lineno - 1, ast.get_docstring(node, clean=False)) for node in nodes if node.body)
    return [(line, text) for line, text in texts if text and ">>>" in text]


def run_examples(text: str, names: dict[str, Any], path: Path, line: int = 0) -> None:
    """Run the examples of one text in a copy of `names`; fail with doctest's report."""
    shown = str(path.relative_to(ROOT))
    test = doctest.DocTestParser().get_doctest(text, dict(names), shown, shown, line)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    if report:
        pytest.fail("".join(report), pytrace=False)


MODULES = {module: path for module, path in module_files().items() if docstrings(path)}
DOCUMENTS = [path for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")) if ">>>" in path.read_text("utf-8")]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"ab": ab, "np": np, **vars(importlib.import_module(module))}
    monkeypatch.chdir(tmp_path)
    for line, text in docstrings(MODULES[module]):
        run_examples(text, names, MODULES[module], line)


@pytest.mark.cases(1)
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_documents(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = GENERATED.sub("", path.read_text(encoding="utf-8"))  # from docstrings, which are tested in the sources
    text = FENCE.sub("", written)  # a closing fence would be read as expected output
    run_examples(text, {"__name__": "__main__"}, path)


def test_a_wrong_example_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="Expected:"):
        run_examples(">>> 1 + 1\n3\n", {}, Path(__file__))
