"""Test that models and readers of trees do not recurse: a tree may be deeper than Python's stack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.models import MODELS, find_model
from helpers.runs.commands import Command

EACH = "(3 (2 good) (2 film))\n", '{"word": "a", "label": "1"}\n', "turn left\t(turn left)\n"
"""A small tree in each tree format."""


def deep_binary(n: int) -> str:
    """Write a tree that is deep on the right, and one that is deep on the left."""
    return "(3 (2 a) " * n + "(2 b)" + ")" * n + "\n" + "(3 " * n + "(2 b)" + " (2 a))" * n + "\n"


def deep_json(n: int) -> str:
    """Write a chain of nodes with labels on every second one."""
    opened = '{"word": "a", "label": "1", "children": [{"word": "b", "children": ['
    return opened * (n // 2) + '{"word": "b"}' + "]}]}" * (n // 2) + "\n"


def deep_described(n: int) -> str:
    """Write a chain of nodes that is described by two words."""
    return "a b\t" + "(do x " * n + "y" + ")" * n + "\n"


DEEP: dict[str, Callable[[int], str]] = dict(zip(EACH, (deep_binary, deep_json, deep_described), strict=True))


def find_tree_models() -> dict[str, str]:
    """Find the models that read trees; return a tree in the file format of each."""
    marks = {"labelled binary trees": EACH[0], "trees of any shape": EACH[1], "a text, a tab and a tree": EACH[2]}
    reads = {name: find_model(name).reads for name in MODELS}
    return {name: small for name, text in reads.items() for mark, small in marks.items() if text.startswith(mark)}


TREE_MODELS = find_tree_models()


def test_all_models_of_trees_are_found() -> None:
    assert len(TREE_MODELS) >= 10
    assert set(TREE_MODELS.values()) == set(EACH)


@pytest.mark.parametrize("name", TREE_MODELS)
def test_a_tree_deeper_than_the_stack_is_learned_and_predicted(name: str, tmp_path: Path) -> None:
    spec, rng, small = find_model(name), np.random.default_rng(0), TREE_MODELS[name]
    path = tmp_path / "trees.txt"
    path.write_text(small + DEEP[small](sys.getrecursionlimit() + 200) + 9 * small)
    data = spec.load(str(path), rng)
    model: Any = spec.build(data, dim=2, rng=rng)
    loss = ab.batched(model.loss, policy="agenda", backend="reference")
    value, grads = loss.value_and_grad(data.items[:4])
    assert np.isfinite(value)
    assert any(np.abs(np.asarray(grad)).max() > 0.0 for grad in grads.values())
    assert spec.predict is not None
    outputs = ab.batched(getattr(model, spec.predictor), policy="agenda", backend="reference")(
        [spec.given(tree) for tree in data.items[:2]]
    )
    assert len(spec.predict(outputs, data.items[:2], data.vocabularies)) == 2


@pytest.mark.slow
def test_a_tree_fifty_thousand_deep_is_trained_on_by_the_command(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_text(deep_binary(50_000) + 20 * EACH[0])
    options = "--dim", 2, "--epochs", 1, "--backend", "reference", "--checkpoint", tmp_path / "run"
    assert command("train", "tree-lstm", "--data", path, *options)[0] == 0
    status, out, _ = command("predict", "tree-lstm", "--data", path, "--checkpoint", tmp_path / "run")
    assert (status, len(out.splitlines())) == (0, 22)
