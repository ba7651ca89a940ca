"""Test molecules: the reader, the generator, and the graph network; test_twins.py compares it with its twin."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from autobatch.models.data.molecule import KJ_PER_EV, ORDER, VALENCE, Molecule, draw_compounds, parse_molecule
from autobatch.models.graph_network import SPEC, GraphNetwork
from autobatch.models.metric import count_squares, explained_variance
from autobatch.readers.lines import Line
from helpers.runs.recorded import types_of_nodes
from helpers.runs.ways import each

RING = (0, 1), (0, 2), (1, 2)


def parse(text: str) -> Molecule[str]:
    return parse_molecule(Line(Path("m.txt"), 7, text))


@each(
    "text, atoms, bonds",
    [
        ("C 1", "C", []),
        ("CCl 1", "C Cl", [(0, 1, "-")]),
        ("CC(=O)N,1", "C C O N", [(0, 1, "-"), (1, 2, "="), (1, 3, "-")]),
        ("C(F)(F)C#N\t1", "C F F C N", [(0, 1, "-"), (0, 2, "-"), (0, 3, "-"), (3, 4, "#")]),
        (" OC1CC1 , 1 ", "O C C C", [(0, 1, "-"), (1, 2, "-"), (1, 3, "-"), (2, 3, "-")]),
        ("C%12CC=%12 1", "C C C", [(0, 1, "-"), (0, 2, "="), (1, 2, "-")]),
        ("c1cO1 1", "c c O", [(0, 1, "-"), (0, 2, "-"), (1, 2, "-")]),
        ("c1c[nH]1 1", "c c [nH]", [(0, 1, ":"), (0, 2, ":"), (1, 2, ":")]),
        ("F/C=C\\F 1", "F C C F", [(0, 1, "-"), (1, 2, "="), (2, 3, "-")]),
        ("[NH4+].Cl 1", "[NH4+] Cl", []),
        ("C1CC%01 1", "C C C", [(a, b, "-") for a, b in RING]),
        ("C%00CC0 1", "C C C", [(a, b, "-") for a, b in RING]),
        ("C%(12)CC=%12 1", "C C C", [(0, 1, "-"), (0, 2, "="), (1, 2, "-")]),
        ("C%(1)CC%(123)1.C%(123) 1", "C C C C", [*[(a, b, "-") for a, b in RING], (2, 3, "-")]),
        ("C=1CC=1 1", "C C C", [(0, 1, "-"), (0, 2, "="), (1, 2, "-")]),
        ("C/1CC-1 1", "C C C", [(a, b, "-") for a, b in RING]),
        ("C1CC1C1CC1 1", "C C C C C C", [(a, b, "-") for a, b in (*RING, (2, 3), (3, 4), (3, 5), (4, 5))]),
    ],
)  # fmt: skip
def test_a_molecule_is_its_atoms_and_bonds(text: str, atoms: str, bonds: list[tuple[int, int, str]]) -> None:
    assert parse(text) == Molecule(atoms.split(), bonds, 1.0)


def test_neighbours_know_each_other() -> None:
    assert parse("CC(=O)N -2.5").neighbours() == [[(1, "-")], [(0, "-"), (2, "="), (3, "-")], [(1, "=")], [(1, "-")]]


@each(
    "text, column, expected, found",
    [
        ("(C) 1", 1, "an atom, such as CC(=O)O", "'('"),
        ("C..C 1", 3, "an atom, such as CC(=O)O", "'.C'"),
        ("C= 1", 3, "an atom, such as CC(=O)O", "' '"),
        ("C==C 1", 3, "an atom or the digit of a ring after '='", "'=C'"),
        ("CQ 1", 2, "an atom, a bond, a branch in brackets or the digit of a ring, such as CC(=O)O", "'Q'"),
        ("C)C 1", 2, "an atom, a bond, a branch in brackets or the digit of a ring, such as CC(=O)O", "')'"),
        ("C(C 1", 4, "')' for the branch that begins in column 2", "' '"),
        ("C1CC 1", 5, "a second 1 for the ring that begins in column 2", "' '"),
        ("C11 1", 3, "the digit of a ring of three or more atoms", "'1'"),
        ("C=1CCC#1 1", 7, "no bond, or '=' as at the start of the ring in column 3", "'#1'"),
        ("C/1CC:%01 1", 6, "no bond, or '/' as at the start of the ring in column 3", "':%01'"),
        ("C()C 1", 3, "an atom, such as CC(=O)O", "')'"),
        ("C(C())C 1", 5, "an atom, such as CC(=O)O", "')'"),
        ("C%(12CC 1", 2, "an atom, a bond, a branch in brackets or the digit of a ring, such as CC(=O)O", "'%'"),
        ("C%(12)CC 1", 9, "a second %12 for the ring that begins in column 2", "' '"),
        ("C1C1 1", 4, "the digit of a ring of three or more atoms", "'1'"),
        ("CC", 3, "a number after the molecule, and the end of the line", "the end of the line"),
        ("CC 1 2", 4, "a number after the molecule, and the end of the line", "'1'"),
        ("CC 1_000", 4, "a number after the molecule, and the end of the line", "'1_000'"),
        ("CC \u0661\u0662", 4, "a number after the molecule, and the end of the line", "'\u0661\u0662'"),
        ("CC nan", 4, "a number after the molecule, and the end of the line", "'nan'"),
    ],
)
def test_a_malformed_molecule_is_named(text: str, column: int, expected: str, found: str) -> None:
    with pytest.raises(DataError) as caught:
        parse(text)
    assert str(caught.value) == (
        f"cannot read a molecule from m.txt, line 7, column {column}: expected {expected}, found {found}."
    )


def test_drawn_molecules_obey_valences_and_have_the_heat_of_their_bonds_and_ring() -> None:
    """networkx finds the rings; the heat is summed over all atoms, including hydrogens."""
    sizes: Counter[int] = Counter()
    for molecule in draw_compounds(300, np.random.default_rng(5)):
        graph = nx.MultiGraph()
        for atom, kind in enumerate(molecule.atoms):
            graph.add_node(atom, kind=kind)
        graph.add_edges_from((one, other, {"kind": kind}) for one, other, kind in molecule.bonds)
        assert nx.is_connected(graph)
        carbons = {atom for atom, kind in enumerate(molecule.atoms) if kind == "C"}
        assert [bond for bond in molecule.bonds if carbons.isdisjoint(bond[:2])] == []
        rings = nx.cycle_basis(nx.Graph(graph))
        assert len(rings) <= 1
        sizes.update(map(len, rings))
        assert molecule.target == pytest.approx(heat_again(graph, rings))
    assert set(sizes) == {3, 4, 5, 6}
    assert 0.4 < sizes.total() / 300 < 0.6


def heat_again(graph: nx.MultiGraph, rings: list[list[int]]) -> float:
    """Return the heat of breaking all bonds and forming the elements, in electronvolts."""
    energies = {
        ("C", "C", 1): 345, ("C", "C", 2): 611, ("C", "C", 3): 837, ("C", "N", 1): 290, ("C", "N", 2): 615,
        ("C", "N", 3): 891, ("C", "O", 1): 350, ("C", "O", 2): 741, ("C", "F", 1): 439, ("C", "H", 1): 415,
        ("H", "N", 1): 390, ("H", "O", 1): 464,
    }  # fmt: skip
    full = graph.copy()
    for atom, kind in graph.nodes(data="kind"):
        n_hydrogens = VALENCE[kind] - sum(ORDER[bond] for *_, bond in graph.edges(atom, data="kind"))
        assert n_hydrogens >= 0
        for number in range(n_hydrogens):
            full.add_node((atom, number), kind="H")
            full.add_edge(atom, (atom, number), kind="-")
    kinds = dict(full.nodes(data="kind"))
    made = sum({"C": 717, "N": 473, "O": 249, "F": 79, "H": 218}[kind] for kind in kinds.values())
    broken = sum(energies[*sorted((kinds[a], kinds[b])), ORDER[bond]] for a, b, bond in full.edges(data="kind"))
    strain = sum({3: 115, 4: 110}.get(len(ring), 0) for ring in rings)
    return (made - broken + strain) / KJ_PER_EV


def test_an_atom_sends_one_message_along_all_bonds_of_a_kind() -> None:
    """Acetamide's second atom has two kinds of bonds, so there are 5 messages in each of 4 steps."""
    model = GraphNetwork(n_atoms=4, n_bonds=3, dim=3, rng=np.random.default_rng(0))
    loss = ab.batched(model.loss)
    loss([Molecule([1, 1, 2, 3], [(0, 1, 1), (1, 2, 2), (1, 3, 1)], 0.0)])
    sent = [name for name in types_of_nodes(loss) if name.startswith("send")]
    assert len(sent) == 5 * 4
    assert len(set(sent)) == 2


def test_explained_variance_adds_up_over_mini_batches() -> None:
    rng = np.random.default_rng(0)
    meant = rng.standard_normal(50) + 3.0
    found = meant + 0.3 * rng.standard_normal(50)
    parts = [count_squares(found[part], meant[part].tolist()) for part in (slice(20), slice(20, None))]
    summed = [sum(both) for both in zip(*parts, strict=True)]
    expected = 1 - ((found - meant) ** 2).mean() / meant.var()
    assert explained_variance(*summed) == pytest.approx(expected, rel=1e-12)
    assert explained_variance(*count_squares([2.0], [2.0])) == 1.0
    assert explained_variance(*count_squares([2.5], [2.0])) == 0.0
    assert explained_variance(0, 0.0, 0.0, 0.0) == 1.0


def test_numbers_are_predicted() -> None:
    assert SPEC.predict is not None
    assert SPEC.predict(np.array([0.5, -1.0], np.float32), [], {}) == [{"value": 0.5}, {"value": -1.0}]


@each(
    "text, single",
    [
        ("c1ccccc1c2ccccc2", [(5, 6)]),  # biphenyl
        ("c1ccccc1-c2ccccc2", [(5, 6)]),
        ("c1ccccc1(c2ccccc2)", [(5, 6)]),
        ("c1ccccc1%10.n1ccccc1%10", [(5, 11)]),  # the bond between the rings is written as a ring closure
        ("c1ccccc1c1ccc(cc1)c1ccccn1", [(5, 6), (9, 12)]),
        ("c1ccc2ccccc2c1", []),  # naphthalene
        ("c1ccc2c(c1)[nH]c1ccccc12", []),  # carbazole: all its rings are aromatic
        ("c1ccc2c(c1)Cc1ccccc12", [(4, 6), (3, 12), (6, 7)]),  # fluorene: its middle ring is not
        ("c1ccccc1C(=O)c1ccccc1", [(5, 6), (6, 8)]),
        ("[cH]1[cH][cH][cH][cH][c]1[c]1ccccc1", [(5, 6)]),
        ("c1ccccc1:c2ccccc2", []),  # as written
        ("c1cc*cc1", []),  # the wildcard atom * may be aromatic
        ("c1cc[*:2]cc1*", [(5, 6)]),
        ("c1ccc2c(c1)C*2", [(4, 6), (3, 7), (6, 7)]),
        ("*c1ccc(*)cc1", [(0, 1), (4, 5)]),
    ],
)
def test_an_unwritten_bond_between_rings_is_single(text: str, single: list[tuple[int, int]]) -> None:
    bonds = parse(f"{text} 0").bonds
    assert [(one, other) for one, other, kind in bonds if kind == "-"] == sorted(single, key=lambda b: (b[1], b[0]))
    assert {kind for _, _, kind in bonds} <= {"-", ":", "="}


def are_joined(one: int, other: int, edges: list[tuple[int, int]]) -> bool:
    reached, grown = {one}, True
    while grown:
        more = {b for edge in edges for a, b in (edge, edge[::-1]) if a in reached} - reached
        reached, grown = reached | more, bool(more)
    return other in reached


@pytest.mark.parametrize("seed", range(40))
def test_unwritten_bonds_are_aromatic_in_rings_of_aromatic_atoms(seed: int) -> None:
    """A bond is in such a ring if its atoms are still connected without it, by bonds that may be aromatic."""
    rng = np.random.default_rng(seed)
    n_atoms = int(rng.integers(2, 14))
    atoms = rng.choice(
        ["c", "n", "[nH]", "*", "[2*]", "C", "O"], n_atoms, p=[0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    ).tolist()
    places = [(one, other) for other in range(n_atoms) for one in range(other) if rng.random() < 1.8 / n_atoms]
    kinds = {place: str(rng.choice(["", "-", ":", "="], p=[0.7, 0.1, 0.1, 0.1])) for place in places}
    ends = [""] * n_atoms
    for number, (one, other) in enumerate(places, start=10):
        ends[one] += f"{kinds[one, other]}%{number}"
        ends[other] += f"%{number}"
    molecule = parse(".".join(map("".join, zip(atoms, ends, strict=True))) + " 0")
    aromatic = {place for place in places if all(atoms[atom].strip("[2]H") in "cn*" for atom in place)}
    may_be = [place for place in places if kinds[place] == ":" or (place in aromatic and not kinds[place])]
    for one, other, kind in molecule.bonds:
        place = one, other
        in_ring = place in may_be and are_joined(one, other, [edge for edge in may_be if edge != place])
        assert kind == (kinds[place] or (":" if in_ring else "-"))
    assert len(molecule.bonds) == len(places)


def test_bonds_of_a_long_molecule_are_settled_without_recursion() -> None:
    n = 5_000
    molecule = parse("c1ccccc1" + "c1ccc(cc1)" * n + "c1ccccc1 0")
    assert sum(kind == "-" for _, _, kind in molecule.bonds) == n + 1
