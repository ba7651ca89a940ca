"""Learn the weights of the rule `score` by an evolution strategy.

CMA-ES draws weights around a mean, plans every dag with each, and moves mean and spread towards the best ones; the best
mean is kept. It minimizes `measure_loss`: half of it is the reported result, the shorter plan of both directions,
compacted, and half the plans without compaction, which hides most of the differences between rules. Rules learned with
the first half only are 0.02% better there and 1% worse uncompacted, on held-out graphs. Multiplying all weights by a
number changes no choice, so the weight of `ready` stays 1.

Source: N. Hansen, The CMA evolution strategy: a tutorial (arXiv:1604.00772); the package cma.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from autobatch.arrays import FloatArray
from autobatch.errors import PolicyError
from autobatch.graph.dag import Dag, chains_ahead, reverse
from autobatch.graph.sketch import Sketch
from autobatch.policies.fsm.qlearning import Progress
from autobatch.policies.rules.directed import Direction
from autobatch.policies.rules.rules import Score, Weights
from autobatch.policies.sequences import compact as compact_sequence
from autobatch.release import pip_install
from learning.families import draw_graphs

FIXED = Weights._fields.index("ready")
FOREST_SIZE, FOREST_STEPS = 256, range(2, 17)
DIGITS = 2
"""Decimals of the learned weights: more are noise, and fewer are easier to read."""


@dataclass(frozen=True)
class Evolution:
    """Settings of learning.

    Attributes:
        generations: how often the mean moves.
        population: weights drawn in each generation.
        spread: standard deviation of the first generation around weights of 0.5.
    """

    generations: int = 40
    population: int = 12
    spread: float = 0.3

    def __post_init__(self) -> None:
        limits = {"generations": self.generations >= 1, "population": self.population >= 4, "spread": self.spread > 0}
        for name, good in limits.items():
            if not good:
                raise PolicyError(f"learning a rule: {name}={getattr(self, name)!r} is out of range; see Evolution.")


def learn_families(
    settings: Evolution = Evolution(),
    *,
    n_graphs: int = 800,
    n_held_out: int = 400,
    direction: Direction = "both",
    compact: bool = True,
    seed: int = 0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Score:
    """Learn a rule on generated families only, to be used on any model.

    Larger forests of plain trees than the families have are added as graphs whose bound must be reached. With its
    defaults, as in `autobatch policy learn families --algorithm es`, this learned the default weights of `Score`.

    Args:
        settings: settings of learning.
        n_graphs, n_held_out: numbers of graphs to learn from, and of others that decide which mean is the best.
        direction, compact, seed, on_progress: see `learn_rule`.

    Raises:
        PolicyError: the package cma is missing.

    Cost: a minute.
    """
    graphs, held_out = (draw_graphs(n, [seed, part]) for part, n in enumerate((n_graphs, n_held_out)))
    forests = [make_forest(FOREST_SIZE, n_steps) for n_steps in FOREST_STEPS]
    return learn_rule(
        graphs, settings, held_out=held_out, must_reach=forests, direction=direction, compact=compact, seed=seed,
        on_progress=on_progress,
    )  # fmt: skip


def learn_rule(
    dags: Sequence[Dag],
    settings: Evolution = Evolution(),
    *,
    held_out: Sequence[Dag] = (),
    must_reach: Sequence[Dag] = (),
    direction: Direction = "both",
    compact: bool = True,
    seed: int = 0,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Score:
    """Learn the weights of a rule on some graphs, which need not have types in common.

    Args:
        dags: graphs that the loss is measured on; those without nodes are ignored.
        settings: settings of learning.
        held_out: graphs that decide which mean is the best; by default `dags`.
        must_reach: graphs whose bound can be reached: their loss is averaged separately and added.
        direction, compact: of the returned rule, see `Directed`; the loss uses both directions.
        seed: the same seed gives the same weights, with the same version of the libraries.
        on_progress: called after every generation; it counts no states.

    Raises:
        PolicyError: no graph has nodes, or the package cma is missing.

    Cost: generations * (population + 1) plans of every graph in both directions, with compaction.
    """
    try:
        import cma
    except ImportError as error:
        raise PolicyError(
            f"learning a rule: the package cma is not installed; {pip_install('rl')}, or use the rule as it is."
        ) from error
    played = [Course.of(dag) for dag in dags if dag.type_id.size]
    measured = [Course.of(dag) for dag in held_out if dag.type_id.size] or played
    if not played:
        raise PolicyError("learning a rule: no graph has nodes; give at least one that has.")
    reached = [Course.of(dag) for dag in must_reach]
    rng = np.random.default_rng(seed)
    options = {
        "popsize": settings.population, "randn": lambda *shape: rng.standard_normal(shape), "seed": np.nan,
        "verbose": -10, "verb_log": 0,
    }  # fmt: skip
    strategy = cma.CMAEvolutionStrategy(np.full(len(Weights._fields) - 1, 0.5), settings.spread, options)
    best, least = Weights(0.0, 1.0, 0.0, 0.0), np.inf
    losses: list[float] = []
    for generation in range(settings.generations):
        drawn = strategy.ask()
        strategy.tell(drawn, [_loss(played, reached, _to_weights(free)) for free in drawn])
        mean = _to_weights(np.round(strategy.mean, DIGITS))
        losses.append(_loss(measured, reached, mean))
        counts = count_all(measured, mean)
        if losses[-1] < least:
            best, least = mean, losses[-1]
        on_progress(Progress(generation + 1, float(counts[:, 2].mean()), float(counts[:, 3].mean()), 0))
    rule = Score(direction, compact, best)
    curves = {"loss": [round(loss, 6) for loss in losses]}
    rule.about = {"settings": asdict(settings), "seed": seed, "mini_batches": len(played), "curves": curves}
    return rule


@dataclass(frozen=True)
class Course:
    """A graph, its reverse, and its chain bound."""

    dag: Dag
    reverse: Dag
    bound: int

    @classmethod
    def of(cls, dag: Dag) -> Course:
        """Prepare a graph for repeated planning."""
        return cls(dag, reverse(dag), int(chains_ahead(dag).max(axis=0).sum()))


def count_all(courses: Sequence[Course], weights: Weights) -> FloatArray:
    """Count the batches of a rule on each graph: float64[graphs, 4].

    The columns: planned from the inputs, from the outputs, the shorter of the two when both are compacted; the bound.
    """
    rule = Score(weights=weights)
    rows = []
    for course in courses:
        forward, backward = rule.plan(course.dag)[0], rule.plan(course.reverse)[0]
        shorter = min(compact_sequence(course.dag, forward).size, compact_sequence(course.reverse, backward).size)
        rows.append((forward.size, backward.size, shorter, course.bound))
    return np.array(rows, np.float64)


def measure_loss(counts: FloatArray) -> float:
    """Average log(batches / bound) over graphs: half of it compacted, a quarter in each direction.

    >>> f"{measure_loss(np.array([[20.0, 20.0, 10.0, 10.0]])):.3f}"  # log(2) / 2
    '0.347'
    """
    forward, backward, compacted = np.log(counts[:, :3] / counts[:, 3:]).mean(axis=0)
    return float(compacted / 2 + forward / 4 + backward / 4)


def make_forest(n_trees: int, n_steps: int) -> Dag:
    """Make plain trees of one inner node, and one with a chain of `n_steps` inner nodes, with one sum of losses.

    Types: leaf, inner, output, loss, sum. While the chain runs, everything else is ready: a policy that runs outputs
    too early, because nearly all are ready, needs one batch more than the bound.

    >>> make_forest(n_trees=2, n_steps=3).type_id.tolist()
    [0, 2, 3, 0, 1, 2, 3, 0, 2, 3, 0, 1, 2, 3, 0, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4]
    """
    sketch, losses = Sketch(5), []

    def add(kind: int, inputs: Sequence[int] = ()) -> int:
        state = sketch.add(kind, inputs)
        losses.append(sketch.add(3, [sketch.add(2, [state])]))
        return state

    for size in [*[1] * n_trees, n_steps]:
        state = add(0)
        for _ in range(size):
            state = add(1, [state, sketch.add(0)])
    sketch.add(4, losses)
    return sketch.to_dag()


def _loss(courses: Sequence[Course], reached: Sequence[Course], weights: Weights) -> float:
    loss = measure_loss(count_all(courses, weights))
    return loss + measure_loss(count_all(reached, weights)) if reached else loss


def _to_weights(free: FloatArray) -> Weights:
    """Insert the weight of `ready` between those that are learned."""
    values: list[float] = np.insert(free, FIXED, 1.0).tolist()
    return Weights(*values)
