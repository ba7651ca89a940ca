"""The example notebooks are short and small, and running them again gives the same output."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from helpers.runs.ways import each
from notebooks import FOLDER, NAMES, check_notebook, list_outputs, main, read_notebook

MOST_CELLS, MOST_BYTES = 12, 150_000
EXAMPLES = FOLDER.parent
SLOW = [pytest.param(name, marks=pytest.mark.slow) if name != "trees" else name for name in NAMES]


@each("name", NAMES)
def test_it_is_short_and_was_run_from_top_to_bottom(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES
    notebook = read_notebook(name)
    assert 6 <= len(notebook.cells) <= MOST_CELLS
    assert notebook.cells[0].cell_type == "markdown"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert all(list_outputs(notebook)), "each cell shows something"
    assert any("<svg" in shown for shown in list_outputs(notebook))


@each("name", NAMES)
def test_its_outputs_name_no_machine_and_no_time(name: str) -> None:
    shown = "".join(list_outputs(read_notebook(name)))
    assert os.sep + "tmp" not in shown
    assert not re.search(r"0x[0-9a-f]{6}|\d+ ?(ms|seconds)\b|\b\d+:\d\d\b", shown)


@each("name", NAMES)
def test_the_table_and_the_page_name_it(name: str) -> None:
    assert f"[notebooks/{name}.ipynb](notebooks/{name}.ipynb)" in (EXAMPLES / "README.md").read_text(encoding="utf-8")
    page = EXAMPLES.parent / "docs" / "howto" / "notebooks.md"
    assert f"`examples/notebooks/{name}.ipynb`" in page.read_text(encoding="utf-8")


@each("name", NAMES)
def test_its_links_lead_somewhere(name: str) -> None:
    text = "\n".join(cell.source for cell in read_notebook(name).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    assert links
    assert [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.parametrize("name", SLOW)
def test_it_puts_out_what_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    assert check_notebook(name)


def test_a_notebook_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tree"])
    assert "must be one of decode, policies, trees, got 'tree'" in capsys.readouterr().err
