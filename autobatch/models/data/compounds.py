"""Draw small organic molecules similar to QM9, with a heat of formation computed from their atoms and bonds.

    OC1CC1 -1.05        CC(=O)N -1.61        FC=CC#N 0.24

A molecule grows from a carbon: atoms of carbon, nitrogen, oxygen and fluorine are added at free bonds, finally one ring
may close, and hydrogens fill the remaining bonds. Nitrogen, oxygen and fluorine bond only to carbon and hydrogen. The
heat of formation is the heat of atomisation of the elements, minus the mean energies of the bonds, plus the strain of a
ring of three or four atoms. Message passing cannot distinguish all ring sizes, so a network explains nearly all of the
variance, but not all.

Source of the energies: tables of mean bond energies, as in Flowers et al. 2019, Chemistry 2e, section 7.5; of the
format: Ramakrishnan et al. 2014, Quantum chemistry structures and properties of 134 kilo molecules (QM9).
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.molecule import DOUBLE, SINGLE, TRIPLE, Molecule

KJ_PER_EV = 96.485
VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1}
ORDER = {SINGLE: 1, DOUBLE: 2, TRIPLE: 3}
ATOM_HEAT = {"C": 717.0, "N": 473.0, "O": 249.0, "F": 79.0, "H": 218.0}
"""Heat of atomisation of an element, per mole of atoms, in kJ/mol."""
BOND_ENERGY = {
    "C-C": 345.0, "C=C": 611.0, "C#C": 837.0, "C-N": 290.0, "C=N": 615.0, "C#N": 891.0, "C-O": 350.0, "C=O": 741.0,
    "C-F": 439.0, "C-H": 415.0, "N-H": 390.0, "O-H": 464.0,
}  # fmt: skip
"""Mean energy of a bond, in kJ/mol."""
STRAIN = {3: 115.0, 4: 110.0}
"""Strain of a ring by number of atoms, in kJ/mol."""
RING_SIZES = range(3, 7)


def draw_compounds(n_molecules: int, rng: np.random.Generator, *, max_atoms: int = 9) -> list[Molecule[str]]:
    """Draw molecules of 1 to `max_atoms` non-hydrogen atoms; the target is the heat of formation in eV.

    Returns:
        Molecules of about 5 atoms and 5 bonds on average, by default; half of them have a ring.

    >>> draw_compounds(1, np.random.default_rng(1), max_atoms=4)[0]
    Molecule(atoms=['C', 'F'], bonds=[(0, 1, '-')], target=-2.425247447789812)
    """
    return [_draw_compound(rng, max_atoms) for _ in range(n_molecules)]


def heat_of_formation(atoms: list[str], bonds: list[tuple[int, int, str]], ring: int) -> float:
    """Compute the heat of formation of a molecule in eV.

    Args:
        atoms, bonds: as in `Molecule`; hydrogens fill the free bonds.
        ring: number of atoms of the ring; 0 without a ring.

    >>> round(heat_of_formation(["C", "O"], [(0, 1, "-")], 0), 2)
    -2.29
    """
    free = _free_bonds(atoms, bonds)
    heat = sum(ATOM_HEAT[atom] for atom in atoms) + STRAIN.get(ring, 0.0)
    heat += sum(n * (ATOM_HEAT["H"] - BOND_ENERGY[f"{atom}-H"]) for atom, n in zip(atoms, free, strict=True) if n)
    heat -= sum(BOND_ENERGY[bond.join(sorted((atoms[one], atoms[other])))] for one, other, bond in bonds)
    return heat / KJ_PER_EV


def _draw_compound(rng: np.random.Generator, max_atoms: int) -> Molecule[str]:
    atoms, bonds = ["C"], list[tuple[int, int, str]]()
    for _ in range(rng.integers(max_atoms)):
        atom = str(rng.choice(list(VALENCE), p=[0.6, 0.15, 0.15, 0.1]))
        free = _free_bonds(atoms, bonds)
        places = [place for place, n in enumerate(free) if n and "C" in (atom, atoms[place])]
        if places:
            place = int(rng.choice(places))
            orders = [bond for bond, n in ORDER.items() if n <= min(free[place], VALENCE[atom])]
            bond = orders[min(rng.geometric(0.65), len(orders)) - 1]
            bonds.append((place, len(atoms), bond))
            atoms.append(str(atom))
    ring = _draw_ring(rng, atoms, bonds)
    if ring:
        bonds.append((*ring[:2], SINGLE))
    return Molecule(atoms, bonds, heat_of_formation(atoms, bonds, ring[2] if ring else 0))


def _draw_ring(
    rng: np.random.Generator, atoms: list[str], bonds: list[tuple[int, int, str]]
) -> tuple[int, int, int] | None:
    """Draw two atoms whose bond closes a ring, and return them with the ring's size; or return None."""
    free, steps = _free_bonds(atoms, bonds), _count_steps(len(atoms), bonds)
    rings = [
        (one, other, int(steps[one, other]) + 1)
        for other in range(len(atoms))
        for one in range(other)
        if free[one] and free[other] and "C" in (atoms[one], atoms[other]) and steps[one, other] + 1 in RING_SIZES
    ]
    return rings[rng.integers(len(rings))] if rings and rng.random() < 0.7 else None


def _free_bonds(atoms: list[str], bonds: list[tuple[int, int, str]]) -> list[int]:
    free = [VALENCE[atom] for atom in atoms]
    for one, other, bond in bonds:
        free[one] -= ORDER[bond]
        free[other] -= ORDER[bond]
    return free


def _count_steps(n_atoms: int, bonds: list[tuple[int, int, str]]) -> np.ndarray:
    """Count the bonds between each pair of atoms; the bonds must form a tree."""
    steps = np.zeros((n_atoms, n_atoms), int)
    for one, other, _ in bonds:  # `other` is newer than all atoms before it
        steps[other, :other] = steps[:other, other] = steps[one, :other] + 1
    return steps
