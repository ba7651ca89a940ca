"""Test circuits, and the types of the network over random graphs; test_twins.py compares it with its twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from autobatch.models.data.circuit import Circuit, draw_circuits, parse_circuit
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.random_dag import SPEC, RandomDag
from autobatch.readers.lines import Line
from helpers.runs.ways import each

NODE = "a kind, the nodes that it reads in brackets, '|' and a tag, such as true()|1 not(0)|0"


def test_a_circuit_is_its_nodes() -> None:
    parsed = parse_circuit(Line(Path("c.txt"), 1, " a()|x  b,c(0)|y a(1,0,1)|x"))
    assert parsed == Circuit(["a", "b,c", "a"], [[], [0], [1, 0, 1]], ["x", "y", "x"])


@each(
    "token, found, expected",
    [
        *((token, token, NODE) for token in ("and", "and|", "|1", "and|1", "and|1|1")),
        ("(0)|1", "(", NODE),
        ("and()", "and", NODE),
        *((f"and({inputs}|1", "and", NODE) for inputs in ("", "0", "00)", "0,)", "0)1", "-1)", "٠)")),
        ("and(0,1)|1", "and", "a node that reads earlier nodes, 0 to 0"),
    ],
)
def test_a_malformed_node_is_named(token: str, found: str, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_circuit(Line(Path("c.txt"), 7, f"true()|1 {token} not(0)|0"))
    assert str(caught.value) == (
        f"cannot read a circuit from c.txt, line 7, column 10: expected {expected}, found {found!r}."
    )


def test_the_first_node_reads_none() -> None:
    with pytest.raises(DataError, match="column 1: expected a node without inputs"):
        parse_circuit(Line(Path("c.txt"), 7, "not(0)|1"))


def test_gates_have_the_values_of_logic() -> None:
    for circuit in draw_circuits(200, np.random.default_rng(1)):
        values: list[bool] = []
        for kind, inputs in zip(circuit.kinds, circuit.inputs, strict=True):
            bits = [values[node] for node in inputs]
            assert len(set(inputs)) == len(inputs)
            match kind:
                case "true" | "false":
                    values.append(kind == "true" and not bits)
                case "not":
                    (bit,) = bits
                    values.append(not bit)
                case "xor":
                    values.append(bits.count(True) in (1, 3))
                case "and" | "or":
                    values.append(all(bits) if kind == "and" else any(bits))
        assert [str(int(value)) for value in values] == circuit.tags


def test_kinds_are_types_whatever_they_read() -> None:
    """Nodes of one kind at one depth run together, although they read zero, one and three nodes."""
    model = RandomDag(n_kinds=2, n_tags=2, dim=3, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss, policy="score")
    loss([Circuit([0, 1, 0, 0], [[], [0], [0], [0, 1, 2]], [0] * 4), Circuit([0, 0], [[], [0]], [1] * 2)])
    assert loss.last is not None
    assert loss.last.batches == loss.last.lower_bound == 3 + 1 + 1 + 1


def test_counting_right_tags() -> None:
    assert SPEC.count_correct is not None
    assert SPEC.predict is not None
    outputs = [list(np.eye(3)[[1, 2]]), list(np.eye(3)[[2]])]
    circuits = [Circuit([1, 1], [[], []], [1, 1]), Circuit([1], [[]], [2])]
    names = {"tags": Vocabulary(["0", "1"])}
    assert SPEC.count_correct(outputs, circuits, names) == {"tag_accuracy": (2, 3), "exact": (1, 2)}
    assert SPEC.predict(outputs, circuits, names) == [{"tags": ["0", "1"]}, {"tags": ["1"]}]
