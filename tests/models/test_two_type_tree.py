"""Test trees with two kinds of inner nodes: what determines the kind, and that both are equally frequent."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autobatch.models.tree_lstm import TwoTypeTree, draw_kinds, load_two_type_trees
from helpers.twins.cases import draw_two_type_case

TEXTS = ["(3 (2 good) (2 film))", "(1 (2 bad) (1 (2 long) (2 film)))", "(2 film)", "(4 (3 very) (3 good))"]


def test_kinds_belong_to_seed_and_tree() -> None:
    _, instances = draw_two_type_case(3, n_instances=200, dim=2)
    trees = [instance.tree for instance in instances]
    drawn = {seed: [draw_kinds(tree, seed) for tree in trees] for seed in range(5)}
    assert drawn[3] == [draw_kinds(tree, 3) for tree in trees]
    flat = np.array([[kind for kinds in drawn[seed] for kind in kinds] for seed in drawn])
    share = 1 / np.sqrt(flat.shape[1])  # twice the standard deviation of the share for fair coins
    assert np.all(np.abs(flat.mean(axis=1) - 0.5) < 2 * share)
    assert np.all(np.abs((flat[1:] == flat[0]).mean(axis=1) - 0.5) < 2 * share)


def test_a_tree_has_the_same_kinds_in_whatever_file(tmp_path: Path) -> None:
    def load(texts: list[str], seed: int) -> list[TwoTypeTree]:
        (tmp_path / "trees.txt").write_text("\n".join(texts) + "\n")
        return load_two_type_trees(str(tmp_path / "trees.txt"), np.random.default_rng(seed), vocabularies).items

    (tmp_path / "trees.txt").write_text("\n".join(TEXTS * 2) + "\n")
    vocabularies = load_two_type_trees(str(tmp_path / "trees.txt"), np.random.default_rng(0)).vocabularies
    assert load(TEXTS, 7) == load(TEXTS[::-1], 7)[::-1]
    assert any(load(TEXTS, seed) != load(TEXTS, 7) for seed in range(5))
    assert [len(item.kinds) for item in load(TEXTS, 7)] == [1, 2, 0, 1]
