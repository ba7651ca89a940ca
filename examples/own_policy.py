"""Compare a custom policy with `depth` (TensorFlow Fold) and `agenda` (DyNet) by the number of batches.

    python examples/own_policy.py

The script prints the lower bound on the number of batches for 32 expressions, and the batches of each policy:

    lower bound  17
    depth        25
    agenda       20
    own          17
"""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab

Expression = Any  # an int, or a tuple of "+" or "*" and two expressions


class Evaluator(ab.Module):
    """Evaluates expressions with one network for sums and one for products; every node has a loss."""

    def __init__(self, dim: int, rng: np.random.Generator) -> None:
        self.digits = ab.Embedding(10, dim, rng=rng)
        self.add, self.multiply = ab.Linear(2 * dim, dim, rng=rng), ab.Linear(2 * dim, dim, rng=rng)
        self.output = ab.Linear(dim, 1, rng=rng)

    @ab.cell
    def digit(self, value: int) -> Any:
        return self.digits(value)

    @ab.cell
    def plus(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.add(ab.concat((left, right))))

    @ab.cell
    def times(self, left: Any, right: Any) -> Any:
        return ab.tanh(self.multiply(ab.concat((left, right))))

    @ab.cell
    def error(self, state: Any, value: float) -> Any:
        return ab.squared_error(self.output(state)[0], value)

    def loss(self, expression: Expression) -> Any:
        errors = []

        def visit(part: Expression) -> tuple[Any, int]:
            if isinstance(part, int):
                state, value = self.digit(part), part
            else:
                (left, a), (right, b) = visit(part[1]), visit(part[2])
                state = (self.plus if part[0] == "+" else self.times)(left, right)
                value = (a + b if part[0] == "+" else a * b) % 10
            errors.append(self.error(state, value / 10))
            return state, value

        visit(expression)
        return ab.sum_n(errors)


class LargestShare(ab.policies.FrontierPolicy):
    """Runs the type of which the largest share of remaining nodes is ready; errors and sums run last."""

    name = "own"

    def __init__(self, types: list[str]) -> None:
        self.late = np.array([name in ("error", "sum_n") for name in types])

    def choose(self, frontier: Any) -> int:
        """Return the type to run; `ready` and `remaining` count the nodes of each type."""
        share = frontier.ready / np.maximum(frontier.remaining, 1)
        return int(np.where(self.late & (frontier.ready > 0), 1e-9, share).argmax())


def draw(rng: np.random.Generator, depth: int) -> Expression:
    """Draw an expression with at most `depth` nested operations."""
    if depth == 0 or rng.random() < 0.15:
        return int(rng.integers(10))
    return ("+*"[rng.integers(2)], draw(rng, depth - 1), draw(rng, depth - 1))


def main() -> None:
    """Plan one mini-batch with three policies."""
    rng = np.random.default_rng(0)
    loss = ab.batched(Evaluator(8, rng).loss)
    graphs = loss.record_all([draw(rng, 7) for _ in range(32)])
    print(f"lower bound  {loss.explain(graphs).lower_bound}")
    own = LargestShare(loss.recorder.types.names)
    policies: list[ab.policies.Policy] = [ab.policies.get("depth"), ab.policies.get("agenda"), own]
    for loss.policy in policies:
        print(f"{loss.policy.name:<12} {loss.explain(graphs).batches}")


if __name__ == "__main__":
    main()
