"""Draw random circuits of logic gates, each gate tagged with its value.

    true()|1 false()|0 or(0,1)|1 not(2)|0 xor(0,2,3)|0

A circuit begins with inputs, which are true or false; every other node is a gate of a random kind that reads earlier
nodes. "xor" is true if an odd number of its inputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autobatch.models.data.circuit import Circuit

INPUTS = ("false", "true")
GATES: Mapping[str, Callable[[Sequence[int]], int]] = {
    "not": lambda bits: 1 - bits[0],
    "and": min,
    "or": max,
    "xor": lambda bits: sum(bits) % 2,
}
"""The value of a gate as a function of its inputs; "not" has one input."""


def draw_circuits(
    n_circuits: int, rng: np.random.Generator, *, max_inputs: int = 4, max_gates: int = 16, max_fan_in: int = 3
) -> list[Circuit[str]]:
    """Draw circuits of 2 to `max_inputs` inputs and 1 to `max_gates` gates, which read 2 to `max_fan_in` nodes each.

    Returns:
        Circuits of about 11 nodes on average, by default.

    >>> print(draw_circuits(1, np.random.default_rng(0), max_gates=4)[0])
    true()|1 true()|1 false()|0 false()|0 not(0)|0
    """
    return [_draw_circuit(rng, max_inputs, max_gates, max_fan_in) for _ in range(n_circuits)]


def _draw_circuit(rng: np.random.Generator, max_inputs: int, max_gates: int, max_fan_in: int) -> Circuit[str]:
    bits: list[int] = rng.integers(2, size=rng.integers(2, max_inputs, endpoint=True)).tolist()
    kinds, inputs = [INPUTS[bit] for bit in bits], [list[int]() for _ in bits]
    for _ in range(rng.integers(1, max_gates, endpoint=True)):
        kind = list(GATES)[rng.integers(len(GATES))]
        n_read = 1 if kind == "not" else rng.integers(2, min(max_fan_in, len(bits)), endpoint=True)
        read = sorted(rng.choice(len(bits), n_read, replace=False).tolist())
        kinds.append(kind)
        inputs.append(read)
        bits.append(GATES[kind]([bits[node] for node in read]))
    return Circuit(kinds, inputs, list(map(str, bits)))
