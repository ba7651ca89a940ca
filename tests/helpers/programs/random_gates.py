"""Random gates, as in gated cells: sums of products of inputs, with biases and activations."""

from __future__ import annotations

from typing import Any

import numpy as np

import autobatch as ab
from autobatch.ir.arguments import Key
from autobatch.ir.program import CellProgram
from autobatch.ops.linear import affine
from autobatch.trace.tracer import Tracer
from helpers.programs.literature_cells import Weights


def draw_gates(rng: np.random.Generator) -> CellProgram:
    """Draw gates of two inputs and their products; some parameters are shared, some are rows of a larger one."""
    weights, width = Weights(3), 3

    def pick(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def gate(k: int, x: Any, h: Any) -> Any:
        name = pick(k, k, k, 0)
        if rng.random() < 0.2:
            made = affine(weights[f"A{name}"], x, weights[f"b{name}"])
        elif rng.random() < 0.2:
            at = int(rng.integers(3)) * width
            made = weights.shaped("wide", (3 * width, width))[at : at + width] @ x
        else:
            made = weights[f"W{name}"] @ x
        if rng.random() < 0.7:
            made = made + weights[f"U{k}"] @ h
        if rng.random() < 0.6:
            made = made + pick(weights[f"b{name}"], 1.0, weights.shaped("b", (1,)))
        return pick(ab.sigmoid, ab.tanh, lambda value: 1.0 - value)(made)

    def body(x: Any, h: Any) -> tuple[Any, ...]:
        first = [gate(k, x, h) for k in range(int(rng.integers(2, 5)))]
        second = [gate(k, first[0] * h, pick(x, h, first[-1])) for k in range(int(rng.integers(1, 4)))]
        return tuple(value for value in (*first, *second) if rng.random() < 0.7) or (x,)

    tracer, key = Tracer("gates", {}), Key("value", (width,))
    program, _ = tracer.trace(lambda given: body(**given), {"x": key, "h": key})
    return program


def draw_sums(rng: np.random.Generator) -> CellProgram:
    """Draw gates with up to three of some inputs of two widths, then gates of these and of some of the inputs.

    Most have a matrix per gate and input; some share one, some read only data, and some read the same input twice.
    """
    weights = Weights(0)
    widths = {"x": 3, "h": 3, "k": 2}

    def gate(name: str, given: dict[str, Any]) -> Any:
        chosen = rng.choice(sorted(given), size=int(rng.integers(1, 4)), replace=bool(rng.random() < 0.1))
        made: Any = None
        for what in chosen:
            shape = (3, given[what].shape[0])
            weight = weights.shaped(f"{what}_{name if rng.random() < 0.9 else 'all'}", shape)
            bias = weights.shaped(f"b_{what}_{name}", (3,))
            product = affine(weight, given[what], bias) if rng.random() < 0.2 else weight @ given[what]
            made = product if made is None else made + product
        if rng.random() < 0.5:
            made = made + weights.shaped(f"b_{name}", (3,))
        return ab.tanh(made) if rng.random() < 0.9 else made

    def body(given: dict[str, Any]) -> tuple[Any, ...]:
        values = dict(given)
        if rng.random() < 0.2:
            values["hx"] = ab.concat((given["h"], given["x"]))
        first = [gate(str(k), values) for k in range(int(rng.integers(1, 5)))]
        values["g"] = first[0] * given["h"]
        return (*first, *(gate(f"second {k}", values) for k in range(int(rng.integers(0, 3)))))

    keys = {name: Key("value", (width,)) for name, width in widths.items()}
    program, _ = Tracer("sums", {}).trace(body, {**keys, "data": Key("float", (3,))})
    return program
