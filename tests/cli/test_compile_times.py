"""The experiment `compile_times`: compilation with empty caches, and loading from full ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import compile_times
from autobatch.cli.workload import load_workload
from autobatch.errors import AutobatchError
from compile_times import CELLS, LAYOUTS, REST, Config

PROCESS = """
import json, os
folder = os.environ["AUTOBATCH_CACHE"]
print(json.dumps("cell x"))
print(json.dumps({answers}[len(os.listdir(folder))]))
open(os.path.join(folder, "kept"), "w").close()
"""


@pytest.mark.slow
def test_cold_and_cached_times_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with fixed answers replaces the processes, which another test runs."""
    answers = [{"cell 'leaf' (forward)": 2.5, LAYOUTS: 0.5, CELLS: 3.0, REST: 1.0},
               {"cell 'leaf' (forward)": 0.125, LAYOUTS: 0.5, CELLS: 0.625, REST: 0.25}]  # fmt: skip
    script = tmp_path / "process.py"
    script.write_text(PROCESS.format(answers=answers))
    monkeypatch.setattr(compile_times, "__file__", str(script))
    path = tmp_path / "times.jsonl"
    config = Config(dim=8, json=str(path))
    found = compile_times.measure(config)
    rows = [line.rsplit(maxsplit=2) for line in found.table.splitlines()[3:]]
    assert rows == [
        ["cell 'leaf' (forward)", "2.50", "0.12"], [LAYOUTS, "0.50", "0.50"], [CELLS, "3.00", "0.62"],
        [REST, "1.00", "0.25"],
    ]  # fmt: skip
    (result,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert [result["cold_s"], result["cached_s"]] == answers
    assert found.figures == result
    script.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(AutobatchError, match="a process ended with status 3"):
        compile_times.measure(config)


@pytest.mark.slow
def test_cells_are_compiled_once_and_loaded_by_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load_workload("tree-lstm", "listops", 4, 0)
    noted: list[list[str]] = []
    run_process = compile_times._run_process

    def run(arguments: list[str], cache: str, note: Callable[[str], None]) -> dict[str, float]:
        noted.append([])
        return run_process(arguments, cache, noted[-1].append)

    monkeypatch.setattr(compile_times, "_run_process", run)
    found = compile_times.time_compilation(workload, 4, print)
    cold, cached = noted
    assert {"compiling cell 'merge' (forward)", "compiling cell 'leaf' (backward)"} <= set(cold)
    assert not any("cell" in what for what in cached)
    assert found.cold.keys() > found.cached.keys()
    assert found.cold[CELLS] == pytest.approx(sum(s for what, s in found.cold.items() if what not in (CELLS, REST)))
    assert found.cached[CELLS] < found.cold[CELLS] / 2
