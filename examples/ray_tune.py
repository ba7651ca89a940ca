"""Tune the options of `learn_policy` with Ray Tune, to minimise the batches of unseen trees.

pip install 'autobatch-nn[ray]' 'ray[tune]'
python examples/ray_tune.py --trees 8
"""

from __future__ import annotations

import argparse
import statistics
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray
from ray import tune

import autobatch as ab


class Phrases(ab.Module):
    """A recursive network with three cells: for words, for pairs of phrases, and for triples.

    Ray sends the class to its workers by value, because this script defines it.
    """

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.words = ab.Embedding(10, dim, rng=rng)
        self.pair, self.triple = ab.Linear(2 * dim, dim, rng=rng), ab.Linear(3 * dim, dim, rng=rng)

    @ab.cell
    def word(self, number: int) -> Any:
        """Return the vector of a word (dim,)."""
        return self.words(number)

    @ab.cell
    def join(self, left: Any, right: Any) -> Any:
        """Join two phrases (dim,)."""
        return ab.tanh(self.pair(ab.concat((left, right))))

    @ab.cell
    def join_three(self, left: Any, middle: Any, right: Any) -> Any:
        """Join three phrases (dim,)."""
        return ab.tanh(self.triple(ab.concat((left, middle, right))))

    def encode(self, phrase: Any) -> Any:
        """Encode a phrase (dim,): the number of a word, or a tuple of two or three phrases."""
        if isinstance(phrase, int):
            return self.word(phrase)
        parts = [self.encode(part) for part in phrase]
        return self.join(*parts) if len(parts) == 2 else self.join_three(*parts)


def draw(rng: np.random.Generator, depth: int) -> Any:
    """Draw a phrase with at most `depth` levels of nesting."""
    if depth == 0 or rng.random() < 0.1:
        return int(rng.integers(10))
    return tuple(draw(rng, depth - 1) for _ in range(int(rng.integers(2, 4))))


def measure(options: dict[str, Any], n_trees: int) -> dict[str, float]:
    """Learn a policy on one mini-batch with these options; return its mean number of batches on four others."""
    rng = np.random.default_rng(0)
    encode = ab.batched(Phrases(4, rng).encode, backend="reference")
    seen, *unseen = [[draw(rng, 5) for _ in range(n_trees)] for _ in range(5)]
    encode.learn_policy([seen], **{**ab.policies.PUBLISHED, **options})
    return {"batches": statistics.fmean(encode.explain(trees).batches for trees in unseen)}


def main() -> None:
    """Try all combinations of a few options in parallel workers and print the best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("trees", 8), ("cpus", 2)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    ray.init(num_cpus=given.cpus, include_dashboard=False, log_to_driver=False)
    choices = {"encoding": ["base", "max", "sort"], "episodes": [50, 200], "seed": [0, 1]}
    with TemporaryDirectory() as folder:
        found = tune.Tuner(
            tune.with_parameters(measure, n_trees=given.trees),
            param_space={name: tune.grid_search(values) for name, values in choices.items()},
            tune_config=tune.TuneConfig(metric="batches", mode="min"),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
        best = found.get_best_result()
        assert best.metrics is not None
        assert best.config is not None
        needed = sorted(one.metrics["batches"] for one in found if one.metrics is not None)
        print(f"{len(found)} policies, {found.num_errors} failed; batches from {needed[0]:.2f} to {needed[-1]:.2f}")
        print("the best options:", ", ".join(f"{name}={value}" for name, value in best.config.items()))
    ray.shutdown()


if __name__ == "__main__":
    main()
