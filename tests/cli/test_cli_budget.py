"""Commands with `--max-bytes`: their messages, equal results, and invalid sizes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers.runs.commands import Command

TREES = [
    "(3 (2 good{0}) (2 film{0}))",
    "(1 (2 bad{0}) (1 (2 long{0}) (2 film{0})))",
    "(2 film{0})",
    "(4 (3 very{0}) (3 good{0}))",
]
RUN = ("--data", "trees.txt", "--dim", 4, "--batch-size", 32, "--lr", 0.03, "--policy", "score")


@pytest.fixture
def command(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return a function that runs a command in this process, in a folder with 120 different trees."""
    (tmp_path / "trees.txt").write_text("".join(f"{tree.format(i)}\n" for i in range(30) for tree in TREES))
    monkeypatch.chdir(tmp_path)
    return command


def read_json(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.mark.parametrize("policy", ["depth", "agenda"])
def test_explain_says_into_how_many_parts(command: Command, policy: str) -> None:
    explain = ("explain", "tree-lstm", "--data", "trees.txt", "--dim", 4, "--policy", policy)
    status, out, err = command(*explain)
    assert (status, err) == (0, "")
    ((planned, held),) = re.findall(r"memory of values: (\d+) bytes planned, (\d+) held", out)
    assert planned == held
    limit = int(planned) // 2
    status, out, err = command(*explain, "--max-bytes", f"{limit / 1000}kB")
    assert (status, err) == (0, "")
    (parts,) = re.findall(
        rf"run in (\d+) parts, .* the whole mini-batch needs {planned} bytes, and max_bytes is {limit}\n", out
    )
    assert 2 <= int(parts) <= 6
    ((planned, held),) = re.findall(r"memory of values: (\d+) bytes planned, (\d+) held", out)
    assert int(planned) <= int(held) <= limit


def test_training_in_parts_resumes_and_gives_the_same_model(command: Command) -> None:
    """Losses equal those without a limit up to rounding; a resumed run keeps its limit or prints its new one."""
    limit = ("--max-bytes", "8kB")
    assert command("train", "tree-lstm", *RUN, "--epochs", 2, "--json", "whole.jsonl", "--checkpoint", "whole")[0] == 0
    assert command("train", "tree-lstm", *RUN, *limit, "--epochs", 1, "--checkpoint", "parts")[0] == 0
    shutil.copytree("parts", "larger")
    again, larger = (
        ("train", "tree-lstm", "--checkpoint", folder, "--resume", "--epochs", 2, "--json", f"{folder}.jsonl")
        for folder in ("parts", "larger")
    )
    status, out, err = command(*larger, "--max-bytes", "12kB")
    assert (status, err) == (0, "")
    assert out.splitlines()[2] == "with another --max-bytes, results are equal up to rounding, not bit-identical"
    status, out, _ = command(*again)
    assert status == 0
    assert "rounding" not in out
    whole, parts = read_json("whole.jsonl")[1], read_json("parts.jsonl")[0]
    in_larger = read_json("larger.jsonl")[0]
    assert in_larger["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-4)
    assert whole["batches"] < in_larger["batches"] < parts["batches"]
    assert (whole["epoch"], parts["epoch"]) == (2, 2)
    assert parts["train_loss"] == pytest.approx(whole["train_loss"], rel=1e-4)
    assert parts["nodes"] >= whole["nodes"], "what two parts share is computed in both"
    assert parts["batches"] > 2 * whole["batches"]
    metrics = [command("eval", "tree-lstm", "--checkpoint", "whole", *more)[:2] for more in ((), limit)]
    assert metrics[0] == metrics[1]
    assert metrics[0][0] == 0
    lines = [command("predict", "tree-lstm", "--checkpoint", "whole", *more)[1] for more in ((), limit)]
    assert lines[0] == lines[1]
    assert lines[0].count("\n") > 0
    status, _, err = command("eval", "tree-lstm", "--checkpoint", "whole", "--max-bytes", "12 B")
    assert (status, err.count("\n")) == (2, 1)
    assert re.search(r"cannot run instance 1, the largest of 12 .*: its 10 nodes need .* max_bytes is 12;", err)


@pytest.mark.parametrize("size", ["0", "-1", "0.5", "1e3", "2 chunks", "GB", ""])
def test_a_size_that_is_none_is_refused(command: Command, size: str) -> None:
    status, out, err = command("explain", "tree-lstm", "--max-bytes", size)
    assert (status, out) == (2, "")
    assert f"must be a number of bytes, such as 2000000000, 2GB or 1.5GiB, got {size!r}" in err


def test_predictions_that_fail_leave_the_file_as_it_was(command: Command) -> None:
    assert command("train", "tree-lstm", *RUN, "--epochs", 1, "--checkpoint", "run")[0] == 0
    predict = ("predict", "tree-lstm", "--checkpoint", "run", "--out", "kept.jsonl")
    assert command(*predict)[0] == 0
    before = Path("kept.jsonl").read_bytes()
    assert before
    status, _, err = command(*predict, "--max-bytes", "12 B")
    assert (status, err.count("\n")) == (2, 1)
    assert Path("kept.jsonl").read_bytes() == before
    assert [path.name for path in Path().iterdir() if path.name.endswith(".tmp")] == []
