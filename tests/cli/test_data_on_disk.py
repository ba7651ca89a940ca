"""Models learn from the real files of their kind, if present, and refuse files of other kinds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autobatch.models import MODELS, find_model
from autobatch.models.data.dataset import (
    CIRCUITS,
    COMPARISONS,
    CONFORMATIONS,
    DESCRIBED_TREES,
    LATTICES,
    MOLECULES,
    PAIRS,
    REPEATS,
    SENTENCES,
    TREES,
)
from helpers.data.datasets import REAL, SMALL, needs_real
from helpers.runs.commands import Command

FILES = {
    TREES.reads: "sst/dev.txt",
    SENTENCES.reads: "wikiner/dev.txt",
    LATTICES.reads: "lattice/dev.txt",
    PAIRS.reads: "iwslt15/dev.en",
}
"""A file for each kind of real data."""
KINDS = {*FILES, *(form.reads for form in (DESCRIBED_TREES, CIRCUITS, COMPARISONS, CONFORMATIONS, MOLECULES, REPEATS))}
"""Kinds that refuse each other's files."""
READS = {name: find_model(name).reads for name in MODELS}


@pytest.mark.cases(0, 4)
@needs_real
@pytest.mark.parametrize("model", [name for name, reads in READS.items() if reads in FILES])
def test_models_learn_from_real_files(command: Command, model: str, tmp_path: Path) -> None:
    """The loss decreases; the whole file is measured and predicted."""
    file = REAL / FILES[READS[model]]
    options = "--dim", 8, "--epochs", 2, "--lr", 0.01, "--backend", "reference", "--checkpoint", tmp_path / "run"
    status, out, err = command("train", model, "--data", file, *options)
    assert (status, err) == (0, "")
    first, last = map(float, re.findall(r"loss (\d+\.\d+)", out))
    assert last < first
    asked = "--checkpoint", tmp_path / "run", "--data", file
    status, out, err = command("eval", model, *asked)
    assert (status, err) == (0, "")
    told = re.search(r", ([\d,]+) instances:  \w", out)
    assert told is not None
    status, out, err = command("predict", model, *asked)
    assert (status, err) == (0, "")
    assert len([json.loads(line) for line in out.splitlines()]) == int(told[1].replace(",", ""))


@pytest.mark.parametrize("model", [name for name, reads in READS.items() if reads in KINDS])
def test_files_of_another_kind_are_refused_in_one_sentence(command: Command, model: str) -> None:
    """The message has file, line and column, or the file that a folder lacks."""
    others = [SMALL / file for reads, file in FILES.items() if reads != READS[model]]
    assert len(others) >= 3
    for file in others:
        status, out, err = command("train", model, "--data", file)
        assert (status, out) == (2, "")
        place = rf"from {re.escape(str(file))}, line \d+, column \d+: expected [^\n]+, found [^\n]+"
        assert re.fullmatch(rf"autobatch: cannot read [\w ]+ ({place}|of {re.escape(str(file))}: [^\n]+)\.\n", err), err
        status, out, err = command("train", model, "--data", file.parent)
        assert (status, out) == (2, "")
        assert re.fullmatch(rf"autobatch: cannot read [^\n]+ {re.escape(str(file.parent))}/train\.[^\n]+\.\n", err), err
