r"""Molecules with a number to predict, one per line, written in SMILES, `CC(=O)O -4.48`; or random ones.

A letter is an atom, and hydrogens are omitted; `=`, `#` and `:` before an atom are its bond; brackets enclose a branch;
two atoms with the same digit are bonded, which closes a ring. Lower-case atoms are aromatic. An atom in square
brackets, such as `[NH3+]`, is a separate kind; the geometry of `/` and `\` is ignored. Blanks, tabs or a comma separate
the molecule from the number, which is optional if answers are not required. Blank lines are skipped.

An implicit bond is aromatic if it is between two aromatic atoms within a ring of such atoms. Otherwise it is single,
like the bond between the rings of biphenyl, `c1ccccc1c1ccccc1`. The wildcard atom `*` counts as aromatic here.

Source of the format: Weininger 1988, SMILES, a chemical language and information system.

Random molecules are small organic ones similar to QM9, with a heat of formation computed from their atoms and bonds:

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

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from autobatch.errors import DataError
from autobatch.readers.lines import Line, parse_lines, to_number

V = TypeVar("V")
W = TypeVar("W")

SINGLE, DOUBLE, TRIPLE, AROMATIC = "-", "=", "#", ":"
_TOKEN = re.compile(
    r"(?P<atom>Cl|Br|[BCNOPSFIbcnops*]|\[[^][ \t,]+\])|(?P<bond>[-=#$:/\\])|(?P<ring>[0-9]|%[0-9]{2}|%\([0-9]{1,5}\))|."
)
_MOLECULE = re.compile(r"[^ \t,]*")
_BLANKS = re.compile(r"[ \t]*,?[ \t]*")
_EXAMPLE = "such as CC(=O)O"


@dataclass(frozen=True)
class Molecule(Generic[W]):
    """A graph whose nodes are atoms and whose edges are bonds: strings as read, ints after encoding by vocabularies.

    Attributes:
        atoms: the kind of each atom.
        bonds: indices of two atoms, the earlier one first, and the kind of bond; at most one per pair.
        target: the number to predict; NaN if not given.
    """

    atoms: list[W]
    bonds: list[tuple[int, int, W]]
    target: float

    def map(self, replace_atom: Callable[[W], V], replace_bond: Callable[[W], V]) -> Molecule[V]:
        """Copy the molecule with other atoms and kinds of bonds."""
        bonds = [(one, other, replace_bond(kind)) for one, other, kind in self.bonds]
        return Molecule(list(map(replace_atom, self.atoms)), bonds, self.target)

    def neighbours(self) -> list[list[tuple[int, W]]]:
        """List the neighbours of each atom, with the kinds of the bonds."""
        near: list[list[tuple[int, W]]] = [[] for _ in self.atoms]
        for one, other, bond in self.bonds:
            near[one].append((other, bond))
            near[other].append((one, bond))
        return near


def read_molecules(path: Path, answered: bool = True) -> list[Molecule[str]]:
    """Read every molecule of a file, with its number.

    Args:
        path: a UTF-8 text file, a molecule in SMILES and a number in each line.
        answered: whether every molecule must have a number.

    Raises:
        DataError: the file cannot be read, holds no molecule, or a line is malformed; names file, line and column.
    """
    parse = partial(parse_molecule, answered=answered)
    return parse_lines(path, "molecules", parse, f"one per line, {_EXAMPLE} -4.5")


def parse_molecule(line: Line, answered: bool = True) -> Molecule[str]:
    """Read a molecule and its number, which is optional unless `answered`.

    Raises:
        DataError: malformed text; the message has the place, the column, and the expected and actual text.

    >>> parse_molecule(Line(Path("x.txt"), 1, "C1CC1=O 0.5"))
    Molecule(atoms=['C', 'C', 'C', 'O'], bonds=[(0, 1, '-'), (0, 2, '-'), (1, 2, '-'), (2, 3, '=')], target=0.5)
    """
    found = _MOLECULE.match(line.text, len(line.text) - len(line.text.lstrip(" \t")))
    assert found is not None
    reader = _Reader(line)
    for token in _TOKEN.finditer(line.text, found.start(), found.end()):
        reader.take(token)
    reader.end(found.end())
    blanks = _BLANKS.match(line.text, found.end())
    assert blanks is not None
    is_alone = not answered and blanks.end() == len(line.text)
    target = math.nan if is_alone else _read_number(line, blanks.end())
    return Molecule(reader.atoms, reader.settle_bonds(), target)


def find_bridges(n_nodes: int, edges: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Find the bridges of an undirected graph without parallel edges: the edges outside all cycles.

    Each edge outside a spanning forest closes a cycle with the paths from its ends to their common ancestor, so the
    nodes on these paths are merged. Edges between nodes that are not merged in the end are bridges.

    >>> sorted(find_bridges(5, [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4)]))
    [(2, 3), (3, 4)]
    """
    parents, depths = _grow_forest(n_nodes, edges)
    above = list(range(n_nodes))  # union-find: a merged node that is not deeper, or the node itself

    def top(node: int) -> int:
        while above[node] != node:
            above[node] = node = above[above[node]]  # halves the path for later calls
        return node

    for one, other in edges:
        if other != parents[one] and one != parents[other]:
            one, other = top(one), top(other)
            while one != other:
                if depths[one] < depths[other]:
                    one, other = other, one
                above[one] = parents[one]
                one = top(one)
    return {(one, other) for one, other in edges if top(one) != top(other)}


def _grow_forest(n_nodes: int, edges: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Build a spanning forest; return the parent of each node, -1 for roots, and its depth."""
    near: list[list[int]] = [[] for _ in range(n_nodes)]
    for one, other in edges:
        near[one].append(other)
        near[other].append(one)
    parents, depths = [-1] * n_nodes, [-1] * n_nodes
    for root in range(n_nodes):
        if depths[root] < 0:
            depths[root], waiting = 0, [root]
            while waiting:
                node = waiting.pop()
                for other in near[node]:
                    if depths[other] < 0:
                        parents[other], depths[other] = node, depths[node] + 1
                        waiting.append(other)
    return parents, depths


def _read_number(line: Line, start: int) -> float:
    number = to_number(line.text[start:])
    if math.isnan(number):
        raise line.fault("a molecule", start, "a number after the molecule, and the end of the line")
    return number


def _kind(bond: str) -> str:
    return bond.replace("/", SINGLE).replace("\\", SINGLE)


def _ring(text: str) -> str:
    """Normalise the number of a ring: 1 for %01, %12 for %(12)."""
    number = int(text.strip("%()"))
    return str(number) if number < 10 else f"%{number}" if number < 100 else f"%({number})"


@dataclass
class _Reader:
    """The state of a parser of SMILES."""

    line: Line
    atoms: list[str] = field(default_factory=list)
    bonds: list[tuple[int, int, str]] = field(default_factory=list)
    """Two atoms and the kind of bond; "" for an implicit bond between aromatic atoms."""
    joined: set[tuple[int, int]] = field(default_factory=set)
    """The atoms of each bond, the earlier one first."""
    before: int | None = None
    """The atom to which the next one is bonded."""
    bond: str = ""
    """The bond read since the last atom; "" if implicit."""
    branches: list[tuple[int, int]] = field(default_factory=list)
    """The atom before each open bracket, and the bracket's column."""
    rings: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    """Digit of an open ring to its atom, its bond ("" if implicit) and its column."""

    def take(self, token: re.Match[str]) -> None:
        text, here = token[0], token.start()
        if token["atom"]:
            self.atoms.append(text)
            if self.before is not None:
                self.join(self.before, len(self.atoms) - 1, self.bond)
            self.before, self.bond = len(self.atoms) - 1, ""
        elif self.before is None:
            raise self.fault(here, f"an atom, {_EXAMPLE}")
        # A ring may follow a bond, so it comes before the branch that allows nothing else after one.
        elif token["ring"]:
            self.close_ring(_ring(text), self.before, here)
        elif self.bond:
            raise self.fault(here, f"an atom or the digit of a ring after {self.bond!r}")
        elif token["bond"]:
            self.bond = text
        elif text == "(":
            self.branches.append((self.before, here))
        elif text == ")" and self.branches:
            self.before, opened = self.branches.pop()
            if opened == here - 1:
                raise self.fault(here, f"an atom, {_EXAMPLE}")
        elif text == ".":
            self.before = None
        else:
            raise self.fault(here, f"an atom, a bond, a branch in brackets or the digit of a ring, {_EXAMPLE}")

    def close_ring(self, digit: str, atom: int, here: int) -> None:
        """Open a ring, or close it with a bond between its two atoms."""
        if digit in self.rings:
            other, bond, column = self.rings.pop(digit)
            if self.bond and bond and _kind(self.bond) != _kind(bond):
                expected = f"no bond, or {bond!r} as at the start of the ring in column {column + 1}"
                raise self.fault(here - len(self.bond), expected)
            if other == atom or (other, atom) in self.joined:
                raise self.fault(here, "the digit of a ring of three or more atoms")
            self.join(other, atom, self.bond or bond)
        else:
            self.rings[digit] = atom, self.bond, here
        self.bond = ""

    def join(self, one: int, other: int, written: str) -> None:
        """Bond an atom to a later one."""
        # The first letter, after the bracket and the mass number of atoms such as [13cH].
        kinds = [self.atoms[atom].lstrip("[0123456789")[:1] for atom in (one, other)]
        aromatic = all(kind.islower() or kind == "*" for kind in kinds)
        bond = _kind(written) or ("" if aromatic else SINGLE)
        self.bonds.append((one, other, bond))
        self.joined.add((one, other))

    def settle_bonds(self) -> list[tuple[int, int, str]]:
        """Return the bonds in order, with implicit bonds made aromatic in a ring of aromatic atoms, else single.

        Explicit bonds count for such a ring only if they are aromatic.
        """
        candidates = [(one, other) for one, other, bond in self.bonds if bond in ("", AROMATIC)]
        outside = find_bridges(len(self.atoms), candidates)
        ordered = sorted(self.bonds, key=lambda bond: (bond[1], bond[0]))
        return [(one, other, bond or (SINGLE if (one, other) in outside else AROMATIC)) for one, other, bond in ordered]

    def end(self, here: int) -> None:
        """Raise an error if the molecule is incomplete at its end."""
        if self.before is None or self.bond:
            raise self.fault(here, f"an atom, {_EXAMPLE}")
        if self.branches:
            raise self.fault(here, f"')' for the branch that begins in column {self.branches[-1][1] + 1}")
        if self.rings:
            digit, (_, _, column) = next(iter(self.rings.items()))
            raise self.fault(here, f"a second {digit} for the ring that begins in column {column + 1}")

    def fault(self, position: int, expected: str) -> DataError:
        return self.line.fault("a molecule", position, expected)


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
