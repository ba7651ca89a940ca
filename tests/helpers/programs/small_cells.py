"""Small random cells for the memory planner, with so few items that all their orders can be tried."""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.ir.arguments import Key
from autobatch.ir.program import CellProgram
from autobatch.trace.tracer import Tracer

WIDTH = 2


def draw_matmuls(rng: np.random.Generator, max_node_items: int = 6, max_weights: int = 4) -> CellProgram:
    """Draw products of ports and earlier products with few weights; some of joins, some with matrices per node."""
    weights = [ab.Parameter(np.zeros((WIDTH, WIDTH))) for _ in range(int(rng.integers(1, max_weights + 1)))]
    wide = ab.Parameter(np.zeros((WIDTH, 2 * WIDTH)))
    n_vectors, n_matrices = int(rng.integers(1, 4)), int(rng.random() < 0.3)
    keys = {f"v{k}": Key("value", (WIDTH,)) for k in range(n_vectors)}
    keys |= {f"m{k}": Key("value", (WIDTH, WIDTH)) for k in range(n_matrices)}
    n_products = max_node_items - len(keys)

    def body(given: dict[str, Any]) -> tuple[Any, ...]:
        vectors = [value for name, value in given.items() if name.startswith("v")]
        matrices = [value for name, value in given.items() if name.startswith("m")]
        n_joins = 0
        for _ in range(n_products):
            if n_joins == 0 and rng.random() < 0.15:
                n_joins = 1
                vectors.append(wide @ ab.concat((_pick(rng, vectors), _pick(rng, vectors))))
            else:
                factors = matrices if matrices and rng.random() < 0.3 else weights
                vectors.append(_pick(rng, factors) @ _pick(rng, vectors))
        return tuple(vectors + matrices)

    names = {id(weight): f"W{k}" for k, weight in enumerate([*weights, wide])}
    program, _ = Tracer("small", names).trace(body, keys)
    return program


def draw_ops(rng: np.random.Generator, n_ops: int) -> CellProgram:
    """Draw products, sums and hyperbolic tangents of one width, each of earlier values."""
    weights = [ab.Parameter(np.zeros((WIDTH, WIDTH))) for _ in range(3)]

    def body(x: Any, y: Any) -> tuple[Any, ...]:
        values = [x, y]
        for _ in range(n_ops):
            first, second = _pick(rng, values[-5:]), _pick(rng, values)
            made = (_pick(rng, weights) @ first, first + second, ab.tanh(first))
            values.append(made[int(rng.choice(3, p=(0.5, 0.3, 0.2)))])
        return tuple(values)

    key = Key("value", (WIDTH,))
    program, _ = Tracer("ops", {}).trace(lambda given: body(**given), {"x": key, "y": key})
    return program


def _pick(rng: np.random.Generator, choices: list[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]
