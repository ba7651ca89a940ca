"""Molecules with positions of atoms, energy and forces, in the extended XYZ format.

3
energy=-0.41 Properties=species:S:1:pos:R:3:forces:R:3
O 0.0 0.0 0.0 0.1 -0.2 0.0
H 1.1 0.0 0.0 -0.1 0.0 0.0
H -0.3 1.0 0.0 0.0 0.2 0.0

The first line is the number of atoms, the second has the energy, and each further line has the element of an atom, its
position and the force on it, three numbers each. Other words of the second line are ignored, except `Properties`, which
must name these columns. Blank lines between molecules are skipped.

If answers are not required, the energy and the force columns may be left out: `Properties=species:S:1:pos:R:3`.

Source of the format: ASE, the Atomic Simulation Environment, ase.io.extxyz.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from autobatch.errors import DataError
from autobatch.readers.lines import Line, read_lines, to_number

V = TypeVar("V")
W = TypeVar("W")
Array = NDArray[np.float64]

CUTOFF = 4.0
"""Atoms closer than this, in Å, are a pair."""

_WORD = re.compile(r"[^ \t]+")
_NUMBER = re.compile(r"[ \t]*([1-9][0-9]{0,8})[ \t]*")
# The look-behind requires the start of a word, so that free_energy=1 is not read.
_ENERGY = re.compile(r"(?<![^ \t])energy=([^ \t]*)")
_COLUMNS = re.compile(r"(?<![^ \t])Properties=([^ \t]*)")
_PLACED = "species:S:1:pos:R:3"
_NAMED = f"{_PLACED}:forces:R:3"
_EXAMPLE = "such as O 0.0 0.0 1.5 0.1 -0.2 0.0"


@dataclass(frozen=True, eq=False)
class Conformation(Generic[W]):
    """A molecule of n atoms: elements are strings as read, ints after encoding by a vocabulary.

    Attributes:
        elements: elements of the atoms.
        positions: positions of the atoms (n, 3), in Å.
        energy: energy of the molecule, in eV; NaN if not given.
        forces: forces on the atoms (n, 3), the negative gradient of the energy with respect to the positions, in eV/Å;
            NaN if not given.
        pairs: pairs of atoms closer than `CUTOFF`, each once, the smaller index first.
    """

    elements: list[W]
    positions: Array
    energy: float
    forces: Array
    pairs: list[tuple[int, int]] = field(default_factory=list)

    def map(self, replace: Callable[[W], V]) -> Conformation[V]:
        """Copy the molecule with other elements."""
        return Conformation(list(map(replace, self.elements)), self.positions, self.energy, self.forces, self.pairs)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Conformation)
            and (self.elements, self.pairs) == (other.elements, other.pairs)
            and np.array_equal([self.energy], [other.energy], equal_nan=True)
            and np.array_equal(self.positions, other.positions)
            and np.array_equal(self.forces, other.forces, equal_nan=True)
        )

    def __str__(self) -> str:
        has_forces = bool(np.isfinite(self.forces).all())
        rows = zip(self.elements, self.positions.tolist(), self.forces.tolist(), strict=True)
        atoms = (" ".join(map(str, (element, *place, *force[: 3 * has_forces]))) for element, place, force in rows)
        facts = [f"Properties={_NAMED if has_forces else _PLACED}"]
        facts[:0] = [] if math.isnan(self.energy) else [f"energy={self.energy}"]
        return "\n".join((str(len(self.elements)), " ".join(facts), *atoms))


def measure_distances(positions: Array) -> Array:
    """Compute the distances of all pairs of atoms (n, n); infinity on the diagonal.

    >>> measure_distances(np.array([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]]))
    array([[inf,  5.],
           [ 5., inf]])
    """
    with np.errstate(over="ignore"):  # distances that overflow are infinite
        distances: Array = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    return distances


def find_pairs(distances: Array, cutoff: float = CUTOFF) -> list[tuple[int, int]]:
    """List the pairs of atoms closer than `cutoff`, each once, the smaller index first.

    >>> find_pairs(measure_distances(np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [5.0, 0.0, 0.0]])), cutoff=4.5)
    [(0, 1), (1, 2)]
    """
    one, other = np.nonzero(np.triu(distances < cutoff))
    return list(zip(one.tolist(), other.tolist(), strict=True))


def read_conformations(path: Path, answered: bool = True) -> list[Conformation[str]]:
    """Read every molecule of a file.

    Args:
        path: a UTF-8 text file in the extended XYZ format, with energies and forces.
        answered: whether every molecule must have an energy and forces.

    Raises:
        DataError: the file cannot be read, holds no molecule, ends inside one, a line is malformed, or two atoms of a
            molecule have the same position; names file, line and column.

    Cost: O(n²) for a molecule of n atoms.
    """
    lines = read_lines(path, "conformations")
    read = [_read_conformation(line, lines, answered) for line in lines if line.text.strip(" \t")]
    if not read:
        raise DataError(
            f"cannot read conformations from {path}: the file holds none; expected a number of atoms, a line with "
            f"energy=-1.5, and a line per atom, {_EXAMPLE}."
        )
    return read


def _read_conformation(line: Line, lines: Iterator[Line], answered: bool) -> Conformation[str]:
    """Read a molecule with the first line `line`, and further lines from `lines`."""
    number = _NUMBER.fullmatch(line.text)
    if number is None:
        start = len(line.text) - len(line.text.lstrip(" \t"))
        raise _fault(line, start, "the number of atoms, from 1 to 999999999, on a line of its own")
    n_atoms = int(number[1])
    line = _follow(line, lines, "a line with energy=-1.5")
    energy, n_columns = _read_facts(line, answered)
    atoms: list[tuple[Line, str, list[float]]] = []
    for place in range(n_atoms):
        line = _follow(line, lines, f"atom {place + 1} of {n_atoms}, {_EXAMPLE}")
        atom = _read_atom(line, n_columns)
        n_columns = (1 + len(atom[1]),)  # the atoms of a molecule have the same columns
        atoms.append((line, *atom))
    numbers = np.full((n_atoms, 6), math.nan)
    numbers[:, : n_columns[0] - 1] = [row for _, _, row in atoms]  # forces stay NaN without their columns
    positions, forces = np.ascontiguousarray(numbers[:, :3]), np.ascontiguousarray(numbers[:, 3:])
    distances = measure_distances(positions)
    if not distances.all():
        _, other = np.argwhere(np.triu(distances == 0.0))[0]  # the later atom of the first such pair
        raise _fault(atoms[other][0], 0, "an atom at a position of its own")
    return Conformation([element for _, element, _ in atoms], positions, energy, forces, find_pairs(distances))


def _follow(line: Line, lines: Iterator[Line], expected: str) -> Line:
    """Return the line after `line`; it is an error if the file ends."""
    following = next(lines, None)
    if following is None:
        raise _fault(line, len(line.text), f"{expected}, in the next line")
    return following


def _read_facts(line: Line, answered: bool) -> tuple[float, tuple[int, ...]]:
    """Read the second line of a molecule: the energy, and the allowed numbers of columns in its atom lines."""
    known = {_NAMED: (7,)} if answered else {_NAMED: (7,), _PLACED: (4,)}
    n_columns = tuple(n for counts in known.values() for n in counts)
    columns = _COLUMNS.search(line.text)
    if columns is not None:
        if columns[1] not in known:
            raise _fault(line, columns.start(1), f"the columns {' or '.join(known)}")
        n_columns = known[columns[1]]
    found = _ENERGY.search(line.text)
    if found is None and answered:
        raise _fault(line, len(line.text), "the energy, such as energy=-1.5")
    return math.nan if found is None else _read_number(line, found.start(1), found[1]), n_columns


def _read_atom(line: Line, n_columns: tuple[int, ...]) -> tuple[str, list[float]]:
    """Read an atom line: the element, the position and, with seven columns, the force."""
    words = list(_WORD.finditer(line.text))
    if len(words) not in n_columns:
        start = words[max(n_columns)].start() if len(words) > max(n_columns) else len(line.text)
        expected = "an element, a position and a force" if 7 in n_columns else "an element and a position"
        raise _fault(line, start, f"{expected}, {_EXAMPLE}")
    element, *numbers = words
    return element[0], [_read_number(line, word.start(), word[0]) for word in numbers]


def _read_number(line: Line, start: int, text: str) -> float:
    number = to_number(text)
    if math.isnan(number):
        raise _fault(line, start, "a number, such as -1.5")
    return number


def _fault(line: Line, position: int, expected: str) -> DataError:
    """Make the error for a line without the expected text at a position."""
    return line.fault("a conformation", position, expected)
