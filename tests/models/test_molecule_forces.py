"""Test energies and forces of molecules: gradients, and the PyTorch models that ours is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import autobatch as ab
from autobatch.models.data.conformation import Conformation
from autobatch.models.molecule_forces import SPEC, MoleculeForces, count_correct, predict_forces
from baselines.baseline import Baseline
from baselines.molecule_forces import ExpertMoleculeForces, TorchMoleculeForces
from helpers.runs.recorded import types_of_nodes
from helpers.runs.ways import each
from helpers.twins.graph_cases import draw_conformations_case
from helpers.twins.molecule_forces import MoleculeForcesTwin

POLICIES = ("unbatched", "depth", "agenda", "score")
BASELINES = (TorchMoleculeForces, ExpertMoleculeForces)


def relative(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest expected number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    return float(np.max(np.abs(found - expected)) / (np.max(np.abs(expected)) or 1.0))


def moved(molecule: Conformation[int], atom: int, axis: int, step: float) -> Conformation[int]:
    """Return the molecule with one atom moved and the same pairs."""
    positions = molecule.positions.copy()
    positions[atom, axis] += step
    return replace(molecule, positions=positions)


@each("policy", POLICIES)
def test_batched_energies_are_the_eager_ones(policy: str) -> None:
    model, molecules = draw_conformations_case(0, 8, dim=6)
    energy = ab.batched(model.energy, policy=policy)
    expected = [float(model.energy(molecule)) for molecule in molecules]
    assert relative(energy(molecules), expected) < 1e-12
    assert relative(energy(energy.record_all(molecules)), expected) < 1e-12


@each("n_blocks", [1, 3])
def test_energies_and_gradients_of_positions_are_the_twins(n_blocks: int) -> None:
    model, molecules = draw_conformations_case(1, 8, 6, n_blocks)
    twin = MoleculeForcesTwin.with_state(model.state_dict())
    energy = ab.batched(model.energy)
    value, _, inputs = energy.value_and_grad(molecules, reduce="sum", inputs=True)
    scores = [twin.energy_and_forces(molecule) for molecule in molecules]
    assert relative(value, sum(found.item() for found, _ in scores)) < 1e-12
    for found, (_, forces) in zip(inputs, scores, strict=True):
        assert relative(-found.positions, forces.detach()) < 1e-10


def test_gradients_of_positions_are_central_differences() -> None:
    model, molecules = draw_conformations_case(2, 5, dim=6)
    energy, step = ab.batched(model.energy), 1e-5
    _, _, inputs = energy.value_and_grad(molecules, reduce="sum", inputs=True)
    for molecule, found in zip(molecules, inputs, strict=True):
        places = list(np.ndindex(*molecule.positions.shape))
        up, down = (energy([moved(molecule, atom, axis, sign * step) for atom, axis in places]) for sign in (1, -1))
        np.testing.assert_allclose(found.positions.ravel(), (up - down) / (2 * step), atol=1e-9)


def test_a_mini_batch_takes_as_many_batches_as_one_molecule() -> None:
    """One batch each: positions, pairs, elements, three blocks and a molecule's sum, whatever the pairs and atoms."""
    model, molecules = draw_conformations_case(3, 20, dim=4)
    energy = ab.batched(model.energy)
    energy(molecules[1:])
    assert energy.last is not None
    assert energy.last.batches == energy.last.lower_bound == 7
    names = types_of_nodes(energy)
    n_atoms = sum(len(molecule.elements) for molecule in molecules[1:])
    assert names.count("pair") == sum(len(molecule.pairs) for molecule in molecules)
    assert sum(name.startswith(("interact", "atom_energy")) for name in names) == 3 * n_atoms


def test_the_energy_does_not_jump_where_a_pair_begins() -> None:
    """As two atoms move apart through the cutoff, the pair's contribution vanishes."""
    model, _ = draw_conformations_case(4, 1, dim=6)

    def at(x: float, pairs: list[tuple[int, int]]) -> float:
        positions = np.array([[0.0, 0.0, 0.0], [x, 0.0, 0.0]])
        return float(model.energy(Conformation([1, 2], positions, 0.0, 0 * positions, pairs)))

    apart = at(model.cutoff, [])
    assert at(model.cutoff - 1e-4, [(0, 1)]) == pytest.approx(apart, abs=1e-8)
    assert at(model.cutoff - 1.0, [(0, 1)]) != pytest.approx(apart, abs=1e-5)


def test_energies_do_not_depend_on_where_a_molecule_is() -> None:
    """Checks rotation, translation and another order of the atoms."""
    model, (_, molecule) = draw_conformations_case(5, 2, dim=6)
    rng = np.random.default_rng(0)
    turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    order = rng.permutation(len(molecule.elements))
    place = {int(atom): number for number, atom in enumerate(order)}
    other = Conformation(
        [molecule.elements[atom] for atom in order],
        (molecule.positions @ turn + 5.0)[order],
        molecule.energy,
        molecule.forces[order],
        [(place[one], place[other]) for one, other in molecule.pairs],
    )
    assert float(model.energy(other)) == pytest.approx(float(model.energy(molecule)), rel=1e-12)


def make_baseline(make: type[ExpertMoleculeForces], model: MoleculeForces, dtype: torch.dtype) -> ExpertMoleculeForces:
    """Return a baseline with the parameters of a model."""
    n_elements, dim = model.elements.shape
    baseline = make(n_elements, dim, len(model.blocks)).to(dtype)
    baseline.copy_parameters(model.state_dict())
    return baseline


def ask_twin(model: MoleculeForces, molecules: list[Conformation[int]]) -> tuple[Any, dict[str, Any]]:
    """Return the twin's losses, and the gradients of their mean."""
    twin = MoleculeForcesTwin.with_state(model.state_dict())
    losses = torch.stack([twin.loss(molecule) for molecule in molecules])
    losses.mean().backward()  # type: ignore[no-untyped-call]
    return losses.detach(), {name: parameter.grad for name, parameter in twin.named_parameters()}


@each("make, n_blocks", [(make, n_blocks) for make in BASELINES for n_blocks in (1, 3)])
def test_losses_and_gradients_of_baselines_are_the_twins(make: type[ExpertMoleculeForces], n_blocks: int) -> None:
    """One molecule at a time and all at once, in both precisions, and again after another mini-batch."""
    model, molecules = draw_conformations_case(6, 8, 6, n_blocks)
    losses, gradients = ask_twin(model, molecules)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        baseline: Baseline = make_baseline(make, model, dtype)
        prepared = [baseline.prepare(molecule) for molecule in molecules]
        baseline.backward(baseline.merge(prepared[3:]))
        found, grads = baseline.answer(baseline.merge(prepared))
        assert relative(found, losses) < tolerance
        assert {name for name in gradients if gradients[name] is not None} == set(grads)
        for name, gradient in grads.items():
            assert relative(gradient, gradients[name]) < tolerance, name


def check_losses(model: MoleculeForces, molecules: list[Conformation[int]], **options: Any) -> None:
    """Compare losses and gradients with the twin's, for molecules and for recorded graphs."""
    losses, gradients = ask_twin(model, molecules)
    loss = ab.batched(model.loss, **options)
    for given in (molecules, loss.record_all(molecules)):
        assert relative(loss(given), losses) < 1e-10
        value, grads = loss.value_and_grad(given)
        assert relative(value, losses.mean()) < 1e-10
        assert grads.keys() == gradients.keys()
        for name, gradient in grads.items():
            assert relative(gradient, gradients[name]) < 1e-9, name


@each("policy, n_blocks", [*((policy, 3) for policy in POLICIES), ("score", 1)])
def test_losses_and_gradients_are_the_twins(policy: str, n_blocks: int) -> None:
    check_losses(*draw_conformations_case(7, 8, 6, n_blocks), policy=policy)


@pytest.mark.slow
def test_compiled_losses_and_gradients_are_the_twins() -> None:
    check_losses(*draw_conformations_case(8, 8, 6), backend="cpu")


def test_eager_losses_and_forces_are_the_twins() -> None:
    model, molecules = draw_conformations_case(9, 6, dim=6)
    losses, _ = ask_twin(model, molecules)
    assert relative([float(model.loss(molecule)) for molecule in molecules], losses) < 1e-10
    twin = MoleculeForcesTwin.with_state(model.state_dict())
    for molecule, energy, forces in zip(molecules, *ab.batched(model.scores)(molecules), strict=True):
        expected = twin.scores(molecule).detach()
        assert relative(np.concatenate(([energy], *forces)), expected) < 1e-10
        alone, forces_alone = model.scores(molecule)
        assert relative(np.concatenate(([alone], *forces_alone)), expected) < 1e-10


def test_a_training_step_takes_as_many_batches_for_many_molecules_as_for_one() -> None:
    model, molecules = draw_conformations_case(10, 16, dim=4)
    loss = ab.batched(model.loss)
    counts = []
    for few in (molecules[1:2], molecules[1:]):
        loss.value_and_grad(few)
        assert loss.last is not None
        counts.append(loss.last.batches)
    assert counts[0] == counts[1]


def test_shares_of_variance_add_up_and_forces_are_predicted() -> None:
    """The errors of the predictions have a known variance. Parts of the data are added up."""
    _, molecules = draw_conformations_case(0, 20, dim=2)
    energies = np.array([molecule.energy for molecule in molecules])
    forces = [[*(force + 0.1)] for force in (molecule.forces for molecule in molecules)]
    outputs = energies - 0.2, forces
    counts = count_correct(outputs, molecules, {})
    parts = [count_correct(tuple(x[part] for x in outputs), molecules[part], {}) for part in (slice(7), slice(7, None))]
    meant = np.concatenate([molecule.forces.ravel() for molecule in molecules])
    for name, error, of in (("energies", 0.2, energies), ("forces", 0.1, meant)):
        key = f"explained_variance_of_{name}"
        summed = [sum(both) for both in zip(*(part[key] for part in parts), strict=True)]
        np.testing.assert_allclose(summed, counts[key], atol=1e-12)
        assert SPEC.metrics[key](*summed) == pytest.approx(1 - error**2 / of.var(), rel=1e-9)
    found = predict_forces(
        (np.array([-1.5], np.float32), [[np.array([0.5, 0.0, -1.0], np.float32)]]), molecules[:1], {}
    )
    assert found == [{"energy": -1.5, "forces": [[0.5, 0.0, -1.0]]}]
