"""Directed acyclic graphs of nodes of several kinds, with a tag at every node, one per line; and random logic circuits.

    true()|1 false()|0 or(0,1)|1 not(2)|0 and(0,2,3)|0

A token is the kind of a node, in brackets the earlier nodes that it reads, `|` and a tag; nodes are numbered from 0. A
kind may contain any characters except blanks, brackets and `|`. Blank lines are skipped. If answers are not required,
the tags of a line may be left out: `true() not(0)`.

A random circuit begins with inputs, which are true or false; every other node is a gate of a random kind that reads
earlier nodes, and is tagged with its value. "xor" is true if an odd number of its inputs are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from autobatch.readers.lines import Line, all_tagged, parse_lines

W = TypeVar("W")

_TOKEN = re.compile("[^ \\t]+")
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_PARTS = re.compile(rf"([^()|]+)\(((?:{_NUMBER}(?:,{_NUMBER})*)?)\)(?:\|([^|]+))?", re.DOTALL)
_EXAMPLE = "such as true()|1 not(0)|0"


@dataclass(frozen=True)
class Circuit(Generic[W]):
    """Nodes in an order in which each comes after those that it reads; kinds and tags are ints after encoding.

    Attributes:
        kinds: kind of each node.
        inputs: the nodes that each node reads, all before it.
        tags: tag of each node; empty if not given.
    """

    kinds: list[W]
    inputs: list[list[int]]
    tags: list[W]

    def __str__(self) -> str:
        read = [",".join(map(str, inputs)) for inputs in self.inputs]
        if not self.tags:
            return " ".join(map("{}({})".format, self.kinds, read))
        return " ".join(map("{}({})|{}".format, self.kinds, read, self.tags))


def read_circuits(path: Path, answered: bool = True) -> list[Circuit[str]]:
    """Read every graph of a file.

    Args:
        path: a UTF-8 text file, one graph per line.
        answered: whether every node must have a tag.

    Raises:
        DataError: the file cannot be read, holds no graph, or a line is malformed; names file, line and column.
    """
    return parse_lines(path, "circuits", partial(parse_circuit, answered=answered), f"one per line, {_EXAMPLE}")


def parse_circuit(line: Line, answered: bool = True) -> Circuit[str]:
    """Read one graph. If `answered`, every node must have a tag; otherwise all or none have one.

    Raises:
        DataError: a token is not a node, or reads a node that is not before it; the message has place and column.

    >>> parse_circuit(Line(Path("x.txt"), 1, "true()|1 false()|0 or(0,1)|1")).inputs
    [[], [], [0, 1]]
    """
    expected = f"a kind, the nodes that it reads in brackets, '|' and a tag, {_EXAMPLE}"
    tokens, circuit, tagged = list(_TOKEN.finditer(line.text)), Circuit[str]([], [], []), list[bool]()
    for number, token in enumerate(tokens):
        parts = _PARTS.fullmatch(token[0])
        if parts is None or (answered and parts[3] is None):
            raise line.fault("a circuit", token.start(), expected)
        inputs = [int(node) for node in parts[2].split(",")] if parts[2] else []  # "".split(",") is [""]
        if any(node >= number for node in inputs):
            readable = f"a node that reads earlier nodes, 0 to {number - 1}" if number else "a node without inputs"
            raise line.fault("a circuit", token.start(), readable)
        circuit.kinds.append(parts[1])
        circuit.inputs.append(inputs)
        circuit.tags.extend([parts[3]] if parts[3] else [])
        tagged.append(bool(parts[3]))
    all_tagged(line, "a circuit", tokens, tagged, expected)
    return circuit


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
