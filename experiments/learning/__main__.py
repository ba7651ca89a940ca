"""Run `autobatch policy learn` with the algorithms es, ppo and dqn, which are implemented here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from autobatch.cli.ending import run_process
from autobatch.cli.policy_learn import ALGORITHMS, learn_command
from autobatch.graph.graph import Graph
from autobatch.policies.learning import read_lesson
from autobatch.policies.rules.network import Deep
from autobatch.policies.rules.rules import Score

sys.path[0] = str(Path(__file__).parents[1])

from learning import deep, evolution  # noqa: E402, its folder is known only now


def learn_weights(
    graphs: Sequence[Graph] = (),
    held_out: Sequence[Graph] = (),
    generations: int = evolution.Evolution.generations,
    **terms: Any,
) -> Score:
    """Learn the weights of `score` on the graphs of a model, or on generated ones if there are none."""
    settings = evolution.Evolution(generations)
    if not graphs:
        return evolution.learn_families(settings, **terms)
    dags, held, _ = read_lesson(graphs, held_out)
    return evolution.learn_rule(dags, settings, held_out=held, **terms)


def learn_network(
    algorithm: deep.Algorithm,
    graphs: Sequence[Graph] = (),
    held_out: Sequence[Graph] = (),
    plot: Path | None = None,
    **options: Any,
) -> Deep:
    """Learn a network on the graphs of a model, or on generated ones if there are none, and plot the progress."""
    chosen = {name: options.pop(name) for name in ("reward", "steps") if name in options}
    settings = deep.DeepLearning(algorithm=algorithm, **chosen)
    if graphs:
        dags, held, _ = read_lesson(graphs, held_out)
        learned = deep.learn_deep(dags, settings, held_out=held, **options)
    else:
        learned = deep.learn_families(settings, **options)
    if plot is not None:
        deep.plot_curve(learned, plot)
    return learned


def count_generations(generations: int = evolution.Evolution.generations, **others: Any) -> int:
    """Count the progress reports of learning weights."""
    return generations


def count_measurements(steps: int = deep.DeepLearning.steps, **others: Any) -> int:
    """Count the progress reports of learning a network."""
    return steps // deep.DeepLearning.measure_every + 2


if __name__ == "__main__":
    for name in ("ppo", "dqn"):
        ALGORITHMS[name] = ALGORITHMS[name].by(partial(learn_network, name), count_measurements)
    ALGORITHMS["es"] = ALGORITHMS["es"].by(learn_weights, count_generations)
    run_process(lambda: learn_command.main(prog_name="autobatch policy learn", standalone_mode=False))
