"""Draw molecules in space with energy and forces of a small force field, in Å and eV.

    E = Σ_{i<j} ε [(R/r)^12 - 2 (R/r)^6] s(r)  +  Σ_{i-j-k} k/2 (cos θ - cos θ_j)²

The first sum is over all pairs of atoms at a distance r, with R = R_i + R_j and ε = sqrt(ε_i ε_j) of their elements
(Lennard-Jones); s falls smoothly from 1 to 0 before the cutoff. The second sum is over the angles θ between two bonds
of an atom j, and is harmonic in the cosine, so that forces are finite when three atoms are collinear.

A molecule grows from a carbon: each further atom is bonded to an atom with a free bond, at nearly the distance R and
away from all other atoms. Two atoms are bonded if and only if they are closer than `NEAREST` times their R, so a model
that sees only distances can infer the bonds.

Source of the terms: Jones 1924, On the determination of molecular fields; van Gunsteren and Berendsen 1987, GROMOS.
The parameters are made up, with the magnitude of those of organic molecules.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autobatch.models.data.conformation import CUTOFF, Conformation, find_pairs, measure_distances

Array = NDArray[np.float64]
Bonds = list[tuple[int, int]]


class Element(NamedTuple):
    """The parameters of an element."""

    symbol: str
    share: float
    """Probability of the element when an atom is drawn."""
    valence: int
    """Largest number of bonds of an atom."""
    radius: float
    """R, in Å."""
    depth: float
    """ε, in eV."""
    cosine: float
    """Cosine of the equilibrium angle between two bonds."""


ELEMENTS = (
    Element("H", 0.3, 1, 0.40, 0.15, 0.0),
    Element("C", 0.4, 4, 0.75, 0.30, -0.33),
    Element("N", 0.15, 3, 0.70, 0.25, -0.29),
    Element("O", 0.15, 2, 0.65, 0.20, -0.25),
)
STIFFNESS = 0.3
"""k, in eV."""
SWITCH = 3.0
"""Distance at which s begins to fall, in Å."""
STRETCH = 0.93, 1.10
"""Range of bond lengths, in units of R."""
NEAREST = 1.25
"""Smallest distance of atoms that are not bonded, in units of R."""

_SHARES = np.array([element.share for element in ELEMENTS])
_RADII = np.add.outer(*2 * [np.array([element.radius for element in ELEMENTS])])
_DEPTHS = np.sqrt(np.multiply.outer(*2 * [np.array([element.depth for element in ELEMENTS])]))
_COSINES = np.array([element.cosine for element in ELEMENTS])
_CARBON = 1  # index of the first atom's element
_N_TRIED = 12  # positions tried for an atom at a given other atom
_N_FAILED = 30  # failed attempts before a molecule is discarded


def draw_conformations(
    n_molecules: int, rng: np.random.Generator, *, min_atoms: int = 5, max_atoms: int = 20
) -> list[Conformation[str]]:
    """Draw molecules of `min_atoms` to `max_atoms` atoms, all numbers equally likely.

    >>> one, = draw_conformations(1, np.random.default_rng(0), max_atoms=5)
    >>> one.elements, round(one.energy, 2), len(one.pairs)
    (['C', 'C', 'N', 'H', 'H'], -0.83, 10)
    """
    return [_draw_conformation(int(rng.integers(min_atoms, max_atoms + 1)), rng) for _ in range(n_molecules)]


def energy_and_forces(kinds: NDArray[np.int64], bonds: Bonds, positions: Array) -> tuple[float, Array]:
    """Compute the energy of a molecule of n atoms in eV, and the force on each atom (n, 3) in eV/Å.

    Args:
        kinds: index in `ELEMENTS` of each atom.
        bonds: pairs of bonded atoms.
        positions: distinct positions of the atoms (n, 3), in Å.

    Cost: O(n²).
    """
    between, between_forces = _attract(kinds, positions)
    of_angles, angle_forces = _bend(kinds, bonds, positions)
    return between + of_angles, between_forces + angle_forces


def _attract(kinds: NDArray[np.int64], positions: Array) -> tuple[float, Array]:
    """Compute the Lennard-Jones energy and forces."""
    distances = measure_distances(positions)
    depths, radii = _DEPTHS[np.ix_(kinds, kinds)], _RADII[np.ix_(kinds, kinds)]
    sixth = (radii / distances) ** 6
    full, slope = depths * sixth * (sixth - 2), -12 * depths * sixth * (sixth - 1) / distances
    switch, switch_slope = _switch(distances)
    by_distance = (slope * switch + full * switch_slope) / distances  # (n, n), 0 on the diagonal
    # The force on i is the sum over j of E'(r_ij) (x_j - x_i) / r_ij, here without the (n, n, 3) differences.
    forces = by_distance @ positions - by_distance.sum(1, keepdims=True) * positions
    return float((full * switch).sum() / 2), forces


def _switch(distances: Array) -> tuple[Array, Array]:
    """Compute s and its derivative; s is a polynomial of degree 5 whose first two derivatives are 0 at both ends."""
    t = np.clip((distances - SWITCH) / (CUTOFF - SWITCH), 0.0, 1.0)
    return 1 - t**3 * (10 - 15 * t + 6 * t**2), -30 * t**2 * (1 - t) ** 2 / (CUTOFF - SWITCH)


def _bend(kinds: NDArray[np.int64], bonds: Bonds, positions: Array) -> tuple[float, Array]:
    """Compute the energy and forces of the angles."""
    near: list[list[int]] = [[] for _ in kinds]
    for one, other in bonds:
        near[one].append(other)
        near[other].append(one)
    angles = [(i, j, k) for j, ends in enumerate(near) for place, k in enumerate(ends) for i in ends[:place]]
    forces = np.zeros_like(positions)
    if not angles:
        return 0.0, forces
    i, j, k = np.array(angles).T
    u, v = positions[i] - positions[j], positions[k] - positions[j]
    u_length, v_length = np.linalg.norm(u, axis=1, keepdims=True), np.linalg.norm(v, axis=1, keepdims=True)
    u, v = u / u_length, v / v_length
    cosine = (u * v).sum(1, keepdims=True)
    off = cosine - _COSINES[kinds[j], None]
    # With unit vectors u and v, the gradient of cos θ for the position of i is (v - cos θ u) / |u|, and likewise for k.
    # The forces on i, j and k add up to zero.
    on_i, on_k = STIFFNESS * off * (cosine * u - v) / u_length, STIFFNESS * off * (cosine * v - u) / v_length
    np.add.at(forces, i, on_i)  # an atom may be in several angles, which += would count once
    np.add.at(forces, k, on_k)
    np.add.at(forces, j, -on_i - on_k)
    return float(STIFFNESS / 2 * (off**2).sum()), forces


def _draw_conformation(n_atoms: int, rng: np.random.Generator) -> Conformation[str]:
    grown = None
    while grown is None:
        grown = _grow(n_atoms, rng)
    kinds, bonds, positions = grown
    energy, forces = energy_and_forces(kinds, bonds, positions)
    pairs = find_pairs(measure_distances(positions))
    return Conformation([ELEMENTS[kind].symbol for kind in kinds], positions, energy, forces, pairs)


def _grow(n_atoms: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], Bonds, Array] | None:
    """Draw elements, bonds and positions atom by atom; return None if no position is found for an atom."""
    kinds, positions = np.full(n_atoms, _CARBON), np.zeros((n_atoms, 3))
    bonds: Bonds = []
    free = [0] * ELEMENTS[_CARBON].valence  # atoms, repeated once per free bond
    n, n_failed = 1, 0
    while n < n_atoms and n_failed < _N_FAILED:
        kind = int(rng.choice(len(ELEMENTS), p=_SHARES))
        more = ELEMENTS[kind].valence - 1
        if len(free) + more < 2 and n + 1 < n_atoms:
            continue  # no free bond would be left for the next atom
        host = free[rng.integers(len(free))]
        place = _find_place(positions[:n], _RADII[kind, kinds[:n]], host, rng)
        if place is None:
            n_failed += 1
            continue
        kinds[n], positions[n] = kind, place
        bonds.append((host, n))
        free.remove(host)
        free += [n] * more
        n += 1
    return (kinds, bonds, positions) if n == n_atoms else None


def _find_place(positions: Array, reach: Array, host: int, rng: np.random.Generator) -> Array | None:
    """Draw a position for an atom bonded to `host`, or return None; `reach` is its R with each existing atom."""
    directions = rng.standard_normal((_N_TRIED, 3))
    lengths = reach[host] * rng.uniform(*STRETCH, _N_TRIED) / np.linalg.norm(directions, axis=1)
    places = positions[host] + lengths[:, None] * directions
    apart = np.linalg.norm(places[:, None] - positions, axis=2) / reach
    apart[:, host] = np.inf  # the only atom that may be near
    fitting = np.flatnonzero(apart.min(1) >= NEAREST)
    return places[fitting[0]] if len(fitting) else None
