"""Models over graphs, grids and nested loops, each with its PyTorch twin and instances."""

from __future__ import annotations

from functools import partial

import numpy as np

from autobatch.models.data.circuit import INPUTS, Circuit, draw_circuits
from autobatch.models.data.comparison import Comparison, draw_edits
from autobatch.models.data.conformation import Conformation
from autobatch.models.data.force_field import draw_conformations
from autobatch.models.data.molecule import SINGLE, Molecule, draw_compounds
from autobatch.models.data.repeats import Repeats, draw_moves
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.graph_network import AGGREGATES, GraphNetwork
from autobatch.models.grid_lstm import GridLSTM
from autobatch.models.molecule_forces import MoleculeForces
from autobatch.models.nested_rnn import NestedRNN
from autobatch.models.random_dag import RandomDag
from helpers.twins.case import Case
from helpers.twins.graph_network import GraphNetworkTwin
from helpers.twins.grid_lstm import GridLSTMTwin
from helpers.twins.molecule_forces import MoleculeForcesTwin
from helpers.twins.nested_rnn import NestedRNNTwin
from helpers.twins.random_dag import RandomDagTwin


def draw_molecules_case(
    seed: int, n_instances: int, dim: int, aggregate: str = "sum"
) -> tuple[GraphNetwork, list[Molecule[int]]]:
    """Draw molecules, one of them a single atom; bonds that are not single, and rare atoms, are unknown."""
    rng = np.random.default_rng(seed)
    drawn = [Molecule(["C"], [], -0.8), *draw_compounds(n_instances - 1, rng)]
    atoms = Vocabulary.count((atom for molecule in drawn for atom in molecule.atoms), min_count=3)
    bonds = Vocabulary([SINGLE])
    model = GraphNetwork(len(atoms), len(bonds), dim, rng, aggregate=aggregate).astype("float64")
    return model, [
        Molecule(
            [atoms.id(atom) for atom in one.atoms], [(a, b, bonds.id(bond)) for a, b, bond in one.bonds], one.target
        )
        for one in drawn
    ]


def draw_conformations_case(
    seed: int, n_instances: int, dim: int, n_blocks: int = 3
) -> tuple[MoleculeForces, list[Conformation[int]]]:
    """Draw molecules, one of them a single atom; oxygen is unknown."""
    rng = np.random.default_rng(seed)
    alone = Conformation(["C"], np.zeros((1, 3)), -0.5, np.zeros((1, 3)))
    drawn = [alone, *draw_conformations(n_instances - 1, rng, max_atoms=12)]
    elements = Vocabulary(["C", "H", "N"])
    model = MoleculeForces(len(elements), dim, rng, n_blocks).astype("float64")
    return model, [molecule.map(elements.id) for molecule in drawn]


def draw_comparisons_case(seed: int, n_instances: int, dim: int) -> tuple[GridLSTM, list[Comparison[int]]]:
    """Draw comparisons, one of them with a single block."""
    rng = np.random.default_rng(seed)
    drawn = [Comparison(["a"], ["b"], "1"), *draw_edits(n_instances - 1, rng)]
    words = Vocabulary.count(word for pair in drawn for word in (*pair.left, *pair.right))
    classes = Vocabulary.count(pair.label for pair in drawn)
    model = GridLSTM(len(words), len(classes), dim, rng).astype("float64")
    return model, [
        Comparison(list(map(words.id, pair.left)), list(map(words.id, pair.right)), classes.id(pair.label))
        for pair in drawn
    ]


def draw_repeats_case(seed: int, n_instances: int, dim: int) -> tuple[NestedRNN, list[Repeats[int]]]:
    """Draw texts, one of which is a word with zero repeats."""
    rng = np.random.default_rng(seed)
    drawn = [Repeats(["left"], [0], ["A"]), *draw_moves(n_instances - 1, rng)]
    words = Vocabulary.count(word for text in drawn for word in text.words)
    tags = Vocabulary.count(tag for text in drawn for tag in text.tags)
    model = NestedRNN(len(words), len(tags), dim, rng).astype("float64")
    return model, [Repeats(list(map(words.id, x.words)), x.counts, list(map(tags.id, x.tags))) for x in drawn]


def draw_circuits_case(seed: int, n_instances: int, dim: int) -> tuple[RandomDag, list[Circuit[int]]]:
    """Draw graphs, one of them a single node; "and" and "or" are unknown."""
    rng = np.random.default_rng(seed)
    drawn = [Circuit(["true"], [[]], ["1"]), *draw_circuits(n_instances - 1, rng, max_gates=10)]
    kinds, tags = Vocabulary([*INPUTS, "not", "xor"]), Vocabulary(["0", "1"])
    model = RandomDag(len(kinds), len(tags), dim, rng).astype("float64")
    return model, [Circuit(list(map(kinds.id, x.kinds)), x.inputs, list(map(tags.id, x.tags))) for x in drawn]


CASES = [
    Case("grid-lstm", draw_comparisons_case, GridLSTMTwin.with_state, place_scores=lambda outputs: outputs[:, None]),
    Case(
        "molecule-forces",
        draw_conformations_case,
        MoleculeForcesTwin.with_state,
        place_scores=lambda outputs: [
            np.concatenate(([energy], *forces)) for energy, forces in zip(*outputs, strict=True)
        ],
    ),
    Case("nested-rnn", draw_repeats_case, NestedRNNTwin.with_state),
    Case("random-dag", draw_circuits_case, RandomDagTwin.with_state),
    *(
        Case(
            f"graph-network, {aggregate}",
            partial(draw_molecules_case, aggregate=aggregate),
            partial(GraphNetworkTwin.with_state, aggregate=aggregate),
            place_scores=lambda outputs: outputs[:, None],
        )
        for aggregate in AGGREGATES
    ),
]
