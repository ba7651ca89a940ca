"""The scripts in `examples/files/` lead from drawn files to exported models, which predict and serve without code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch import readers
from checkout import ROOT
from helpers.data.files import WRITERS
from helpers.runs.commands import Command
from helpers.runs.ways import each

FOLDER = ROOT / "examples" / "files"
NAMES = sorted(WRITERS)
MOST_LINES = 30  # of code, without imports
NEEDS = {"conllu": "conllu", "penman": "penman", "smiles": "rdkit"}
READ: Mapping[str, Callable[[Path], list[Any]]] = {
    "brackets": readers.read_brackets, "conll": lambda path: readers.read_conll(path, {"word": 0, "tag": -1}),
    "conllu": readers.read_conllu, "csv": lambda path: readers.read_csv(path, {"text": str.split, "label": str}),
    "jsonl": readers.read_jsonl, "penman": readers.read_penman, "plf": readers.read_plf, "slf": readers.read_slf,
    "smiles": readers.read_smiles, "sst": readers.read_brackets, "tu": readers.read_tu,
}  # fmt: skip


def labels_of(tree: dict[str, Any]) -> list[int]:
    """Return the labels of a tree, children first."""
    return [label for child in tree.get("children", ()) for label in labels_of(child)] + [tree["label"]]


ANSWERS: Mapping[str, tuple[Callable[[Any], Any], float]] = {
    "brackets": (labels_of, 0.6), "conll": (lambda x: x["tag"], 0.95), "conllu": (lambda x: x["upos"], 0.95),
    "csv": (lambda x: [x["label"]], 0.95), "jsonl": (labels_of, 0.95), "penman": (lambda x: x["concept"], 0.5),
    "plf": (lambda x: x["score"], 0.95), "slf": (lambda x: x["language"], 0.95),
    "smiles": (lambda x: [x["target"]], 0.7), "sst": (lambda x: [x["label"]], 0.9), "tu": (lambda x: [x["label"]], 0.9),
}  # fmt: skip
"""The answers in an encoded instance, and the share of predictions that must equal them, numbers within 0.2."""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on the reference backend, which compiles nothing."""
    monkeypatch.setenv("AUTOBATCH_BACKEND", "reference")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def train(name: str, folder: Path, n: int = 150) -> tuple[Path, str]:
    """Draw a file and run its script; return the exported model and the script's output."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="needs the extra readers")
    data, out = folder / name, folder / "model.ab"
    WRITERS[name](data, np.random.default_rng(0), n)
    command = [sys.executable, str(FOLDER / f"from_{name}.py"), str(data), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


@each("name", NAMES)
def test_scripts_are_short_and_listed(name: str) -> None:
    text = (FOLDER / f"from_{name}.py").read_text(encoding="utf-8")
    _, described, code = text.split('"""', 2)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import ", "from "))]
    assert len(lines) <= MOST_LINES
    assert f"python examples/files/from_{name}.py " in described
    assert f"(files/from_{name}.py)" in (FOLDER.parent / "README.md").read_text(encoding="utf-8")


def test_there_is_a_script_for_every_format() -> None:
    assert sorted(path.stem.removeprefix("from_") for path in FOLDER.glob("*.py")) == NAMES
    used = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    assert [name for name in readers.__all__ if name.startswith("read_") and name not in used] == []


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", ["conll", "brackets", *(name for name in NAMES if name not in ("conll", "brackets"))])
@pytest.mark.usefixtures("backend")
def test_a_file_becomes_a_model_that_predicts_without_its_code(name: str, command: Command, tmp_path: Path) -> None:
    out, told = train(name, tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", told)]
    assert losses[-1] < 0.7 * losses[0] or losses[-1] < 0.005
    requests, results = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    WRITERS[name](tmp_path / "new", np.random.default_rng(1), 20)
    new = READ[name](tmp_path / "new")
    requests.write_text("".join(f"{json.dumps(x)}\n" for x in new), encoding="utf-8")
    status, _, error = command("predict", "--model", out, "--data", requests, "--out", results)
    assert status == 0, error
    known = readers.restore(ab.load(out).about)
    answers, least = ANSWERS[name]
    right = []
    for line, instance in zip(results.read_text().splitlines(), new, strict=True):
        found = np.atleast_1d(json.loads(line)["result"])
        found = found[None].argmax(1) if name == "tu" else found
        expected = np.array(answers(readers.encode(instance, known)))
        assert found.shape == expected.shape
        right += (np.abs(found - expected) < 0.2).tolist()
    assert np.mean(right) >= least


@pytest.mark.slow
@pytest.mark.usefixtures("backend")
def test_a_model_is_served_and_reads_words(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    out, _ = train("conll", tmp_path)
    command = [sys.executable, "-m", "autobatch", "serve", "--model", str(out), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://127.0.0.1:(\d+)/", process.stdout.readline())
        assert found is not None
        port = int(found[1])

        def ask(instance: Any) -> tuple[int, Any]:
            with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("POST", "/predict", json.dumps({"instance": instance}))
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())

        tags = readers.restore(ab.load(out).about)["tag"]
        status, answer = ask({"word": ["the", "film", "new"]})
        assert (status, tags.decode(answer["result"]["result"])[:2]) == (200, ["ADJ", "NOUN"])
        status, answer = ask({"word": ["the", 7]})
        assert (status, "words to encode must be a str" in answer["error"]) == (422, True)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
