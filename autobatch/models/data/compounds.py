"""Draw small organic molecules, as those of QM9, with a heat of formation that follows from their atoms and bonds.

    OC1CC1 -1.05        CC(=O)N -1.61        FC=CC#N 0.24

A molecule grows from a carbon: atoms of carbon, nitrogen, oxygen and fluorine are added where bonds are free, at last
one ring may close, and hydrogens take the bonds that are left. Nitrogen, oxygen and fluorine are bonded to carbon
and hydrogen only. Its heat of formation is the heat that makes single atoms of the elements, less the mean energies of
its bonds, and the strain of a ring of three or four. To know that strain, messages have to go around the ring, and
even so some rings of different size look alike to them: a network explains nearly all of the variance, not all.

Source of the energies: tables of mean bond energies, as in Flowers et al. 2019, Chemistry 2e, section 7.5; of the form:
Ramakrishnan et al. 2014, Quantum chemistry structures and properties of 134 kilo molecules (QM9).
"""

from __future__ import annotations

import numpy as np

from autobatch.models.data.molecule import DOUBLE, SINGLE, TRIPLE, Molecule

KJ_PER_EV = 96.485
VALENCE = {"C": 4, "N": 3, "O": 2, "F": 1}
ORDER = {SINGLE: 1, DOUBLE: 2, TRIPLE: 3}
ATOM_HEAT = {"C": 717.0, "N": 473.0, "O": 249.0, "F": 79.0, "H": 218.0}
"""Heat in kJ/mol that makes single atoms of an element."""
BOND_ENERGY = {
    "C-C": 345.0, "C=C": 611.0, "C#C": 837.0, "C-N": 290.0, "C=N": 615.0, "C#N": 891.0, "C-O": 350.0, "C=O": 741.0,
    "C-F": 439.0, "C-H": 415.0, "N-H": 390.0, "O-H": 464.0,
}  # fmt: skip
"""In kJ/mol."""
STRAIN = {3: 115.0, 4: 110.0}
"""Of a ring of so many atoms, in kJ/mol."""
RING_SIZES = range(3, 7)


def draw_compounds(n_molecules: int, rng: np.random.Generator, *, max_atoms: int = 9) -> list[Molecule[str]]:
    """Draw molecules of 1 to `max_atoms` atoms, hydrogens not counted; the target is a heat in electronvolts.

    Returns:
        Molecules of about 5 atoms and 5 bonds in the mean, by default; half of them have a ring.

    >>> draw_compounds(1, np.random.default_rng(1), max_atoms=4)[0]
    Molecule(atoms=['C', 'F'], bonds=[(0, 1, '-')], target=-2.425247447789812)
    """
    return [_draw_compound(rng, max_atoms) for _ in range(n_molecules)]


def heat_of_formation(atoms: list[str], bonds: list[tuple[int, int, str]], ring: int) -> float:
    """Compute the heat that making a molecule of its elements takes, in electronvolts.

    Args:
        atoms, bonds: as in a `Molecule`; hydrogens take the free bonds.
        ring: atoms of the ring, 0 if there is none.

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
    """Choose two atoms that a bond may join to a ring, and say of how many atoms; None if there are no such two."""
    free, steps = _free_bonds(atoms, bonds), _count_steps(len(atoms), bonds)
    rings = [
        (one, other, int(steps[one, other]) + 1)
        for other in range(len(atoms))
        for one in range(other)
        if free[one] and free[other] and "C" in (atoms[one], atoms[other]) and steps[one, other] + 1 in RING_SIZES
    ]
    return rings[rng.integers(len(rings))] if rings and rng.random() < 0.7 else None


def _free_bonds(atoms: list[str], bonds: list[tuple[int, int, str]]) -> list[int]:
    """Count the bonds that each atom has left."""
    free = [VALENCE[atom] for atom in atoms]
    for one, other, bond in bonds:
        free[one] -= ORDER[bond]
        free[other] -= ORDER[bond]
    return free


def _count_steps(n_atoms: int, bonds: list[tuple[int, int, str]]) -> np.ndarray:
    """Count the bonds on the way from each atom to each other; the bonds make a tree."""
    steps = np.zeros((n_atoms, n_atoms), int)
    for one, other, _ in bonds:  # `other` is newer than all atoms before it
        steps[other, :other] = steps[:other, other] = steps[one, :other] + 1
    return steps
