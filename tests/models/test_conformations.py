"""Test molecules in space: the force field that draws them, and the reader of files with energies and forces."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from autobatch.errors import DataError
from autobatch.models.data import force_field
from autobatch.models.data.conformation import CUTOFF, Conformation, read_conformations
from autobatch.models.data.force_field import ELEMENTS, NEAREST, draw_conformations, energy_and_forces
from helpers.data.readers import CONFORMATIONS
from helpers.runs.ways import each

KINDS = {element.symbol: element for element in ELEMENTS}


def distance(molecule: Conformation[str], one: int, other: int) -> float:
    return math.dist(molecule.positions[one].tolist(), molecule.positions[other].tolist())


def bonds_of(molecule: Conformation[str]) -> nx.Graph:
    """Connect the atoms that are close enough to be bonded."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(molecule.elements)))
    for one, other in combinations(graph, 2):
        reach = KINDS[molecule.elements[one]].radius + KINDS[molecule.elements[other]].radius
        if distance(molecule, one, other) < reach * (1 + NEAREST) / 2:
            graph.add_edge(one, other)
    return graph


def energy_again(molecule: Conformation[str]) -> float:
    """Sum the energy term by term, from elements and positions alone."""
    total = 0.0
    for one, other in combinations(range(len(molecule.elements)), 2):
        a, b = KINDS[molecule.elements[one]], KINDS[molecule.elements[other]]
        r = distance(molecule, one, other)
        ratio = (a.radius + b.radius) / r
        t = min(max((r - force_field.SWITCH) / (CUTOFF - force_field.SWITCH), 0.0), 1.0)
        total += math.sqrt(a.depth * b.depth) * (ratio**12 - 2 * ratio**6) * (1 - 10 * t**3 + 15 * t**4 - 6 * t**5)
    bonds = bonds_of(molecule)
    for middle in bonds:
        for one, other in combinations(bonds[middle], 2):
            u, v = (
                molecule.positions[one] - molecule.positions[middle],
                molecule.positions[other] - molecule.positions[middle],
            )
            cosine = u @ v / math.sqrt((u @ u) * (v @ v))
            total += force_field.STIFFNESS / 2 * (cosine - KINDS[molecule.elements[middle]].cosine) ** 2
    return total


def test_drawn_molecules_have_the_energy_of_their_elements_and_places() -> None:
    """So the energy can be learned from them: the bonds, a tree within the valences, are exactly the close pairs."""
    sizes = set()
    for molecule in draw_conformations(60, np.random.default_rng(0), max_atoms=60):
        n = len(molecule.elements)
        sizes.add(n)
        bonds = bonds_of(molecule)
        assert nx.is_tree(bonds)
        assert all(bonds.degree(atom) <= KINDS[molecule.elements[atom]].valence for atom in range(n))
        assert molecule.energy == pytest.approx(energy_again(molecule), rel=1e-12)
        near = [pair for pair in combinations(range(n), 2) if distance(molecule, *pair) < CUTOFF]
        assert molecule.pairs == near
        assert molecule.positions.shape == molecule.forces.shape == (n, 3)
    assert (min(sizes) >= 5, max(sizes) <= 60, max(sizes) > 50) == (True, True, True)


def test_forces_are_central_differences_of_the_energy() -> None:
    kinds = {element.symbol: kind for kind, element in enumerate(ELEMENTS)}
    step = 1e-5
    for molecule in draw_conformations(6, np.random.default_rng(1), max_atoms=30):
        numbers, bonds = np.array([kinds[element] for element in molecule.elements]), list(bonds_of(molecule).edges)
        energy, forces = energy_and_forces(numbers, bonds, molecule.positions)
        assert energy == pytest.approx(molecule.energy, rel=1e-12)
        np.testing.assert_allclose(forces, molecule.forces, atol=1e-12)
        for atom, axis in np.ndindex(forces.shape):
            moved = np.zeros_like(forces)
            moved[atom, axis] = step
            up, down = (energy_and_forces(numbers, bonds, molecule.positions + sign * moved)[0] for sign in (1, -1))
            assert forces[atom, axis] == pytest.approx((down - up) / (2 * step), abs=1e-7)


def test_forces_add_up_to_nothing_and_are_of_the_order_of_one() -> None:
    molecules = draw_conformations(100, np.random.default_rng(2), max_atoms=60)
    for molecule in molecules:
        np.testing.assert_allclose(molecule.forces.sum(0), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.cross(molecule.positions, molecule.forces).sum(0), 0.0, atol=1e-11)
    forces = np.concatenate([molecule.forces for molecule in molecules])
    assert 0.3 < np.sqrt((forces**2).mean()) < 1.0
    assert np.abs(forces).max() < 6.0
    assert 1.0 < np.std([molecule.energy for molecule in molecules]) < 6.0


def test_the_energy_does_not_jump_at_the_cutoff() -> None:
    """As two carbons move apart, energy and force are continuous, and zero beyond the cutoff."""
    kinds = np.array([1, 1])

    def at(r: float) -> tuple[float, float]:
        energy, forces = energy_and_forces(kinds, [], np.array([[0.0, 0.0, 0.0], [r, 0.0, 0.0]]))
        return energy, float(forces[1, 0])

    assert at(CUTOFF) == at(CUTOFF + 1.0) == (0.0, 0.0)
    for r in (force_field.SWITCH, CUTOFF):
        np.testing.assert_allclose(at(r - 1e-7), at(r + 1e-7), atol=1e-7)
    assert at(2 * ELEMENTS[1].radius) == pytest.approx((-ELEMENTS[1].depth, 0.0))


# --- files ---


def test_a_molecule_is_its_atoms_and_forces(tmp_path: Path) -> None:
    path = tmp_path / "m.xyz"
    path.write_text(CONFORMATIONS)
    two, one = read_conformations(path)
    assert (two.elements, two.energy, two.pairs) == (["C", "O"], -1.5, [(0, 1)])
    np.testing.assert_array_equal(two.positions, [[0, 0, 0], [3, 0, 2]])
    np.testing.assert_array_equal(two.forces, [[0.5, 0, 0], [-0.5, 0, 0]])
    assert one == Conformation(["H"], np.array([[1.0, 2.0, 3.0]]), 0.0, np.zeros((1, 3)))
    assert one != two
    assert two.map(KINDS.__getitem__).elements == [KINDS["C"], KINDS["O"]]


def test_drawn_molecules_print_and_read_back(tmp_path: Path) -> None:
    molecules = draw_conformations(5, np.random.default_rng(0))
    (tmp_path / "m.xyz").write_text("\n".join(map(str, molecules)))
    assert read_conformations(tmp_path / "m.xyz") == molecules


@each(
    "text, line, column, expected, found",
    [
        ("x", 1, 1, "the number of atoms, from 1 to 999999999", "'x'"),
        ("\n 0", 2, 2, "the number of atoms, from 1", "'0'"),
        ("1 2", 1, 1, "the number of atoms, from 1", "'1'"),
        ("1", 1, 2, "a line with energy=-1.5, in the next line", "the end of the line"),
        ("1\n", 1, 2, "a line with energy=-1.5, in the next line", "the end of the line"),
        ("1\nmy_energy=1", 2, 12, "the energy, such as energy=-1.5", "the end of the line"),
        ("1\nenergy=nan", 2, 8, "a number, such as -1.5", "'nan'"),
        ("1\nenergy=1_0", 2, 8, "a number, such as -1.5", "'1_0'"),
        ("1\nenergy= 1", 2, 8, "a number, such as -1.5", "' '"),
        ("1\nenergy=1 Properties=pos:R:3", 2, 21, "the columns species:S:1:pos:R:3:forces:R:3", "'pos:R:3'"),
        ("1\nenergy=1", 2, 9, "atom 1 of 1, such as O 0.0 0.0 1.5 0.1 -0.2 0.0, in the next line", "the end of"),
        ("1\nenergy=1\nC 0 0 0", 3, 8, "an element, a position and a force, such as O", "the end of the line"),
        ("1\nenergy=1\nC 0 0 0 0 0 0 9", 3, 15, "an element, a position and a force, such as O", "'9'"),
        ("1\nenergy=1\nC 0 0 z 0 0 0", 3, 7, "a number, such as -1.5", "'z'"),
        ("2\nenergy=1\nC 0 0 0 1 0 0\nO 0 -0.0 0 0 0 0", 4, 1, "an atom at a position of its own", "'O'"),
    ],
)  # fmt: skip
def test_a_malformed_molecule_is_named(
    tmp_path: Path, text: str, line: int, column: int, expected: str, found: str
) -> None:
    path = tmp_path / "m.xyz"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_conformations(path)
    message = str(caught.value)
    assert message.startswith(
        f"cannot read a conformation from {path}, line {line}, column {column}: expected {expected}"
    )
    assert f", found {found}" in message
