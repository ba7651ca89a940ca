"""Training with --scale-targets standardises the targets; metrics and predictions stay in their unit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.serving.predictor import Predictor
from autobatch.cli.training.stored import LAST
from autobatch.cli.training.trained import Trained
from autobatch.models import find_model
from autobatch.models.data.dataset import Dataset
from autobatch.models.data.force_field import draw_conformations
from autobatch.models.graph_network import GraphNetwork
from autobatch.params.checkpoint import load_checkpoint
from helpers.runs.commands import Command

RUN = ("--dim", 8, "--batch-size", 8, "--epochs", 3, "--lr", 0.02, "--backend", "reference")
FACTOR, SHIFT = 250.0, 40_000.0


def read_json(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write molecules with large numbers, and with standardised ones; return the large numbers."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    drawn = ["".join(rng.choice(list("CNO"), rng.integers(1, 7))) for _ in range(60)]
    targets = SHIFT + FACTOR * np.array([len(atoms) + 3.1 * atoms.count("N") for atoms in drawn])
    train = targets[:45]
    scaled = (targets - train.mean()) / train.std()
    for folder, values in (("large", targets), ("scaled", scaled)):
        Path(folder).mkdir()
        lines = [f"{atoms} {value!r}" for atoms, value in zip(drawn, values.tolist(), strict=True)]
        Path(folder, "train.txt").write_text("\n".join(lines[:45]) + "\n")
        Path(folder, "dev.txt").write_text("\n".join(lines[45:]) + "\n")
    return targets


def test_training_is_that_on_standardised_numbers(command: Command, numbers: Any) -> None:
    """Losses and parameters are bit-identical; errors are those of the predictions, computed here in float64."""
    for folder, options in (("large", ("--scale-targets",)), ("scaled", ())):
        words = "train", "graph-network", "--data", folder, *RUN, *options
        status, _, err = command(*words, "--checkpoint", f"{folder}/run", "--json", f"{folder}/x.jsonl")
        assert (status, err) == (0, "")
    large, scaled = (read_json(Path(folder, "x.jsonl")) for folder in ("large", "scaled"))
    assert [one["train_loss"] for one in large] == [one["train_loss"] for one in scaled]
    parameters = [load_checkpoint(Path(folder, "run", LAST)).arrays for folder in ("large", "scaled")]
    np.testing.assert_equal(parameters[0], parameters[1])
    found = {}
    for folder in ("large", "scaled"):
        given = "predict", "graph-network", "--checkpoint", f"{folder}/run/{LAST}"
        found[folder] = np.array([json.loads(line)["value"] for line in command(*given)[1].splitlines()])
    std = numbers[:45].std()
    np.testing.assert_allclose(found["large"], numbers[:45].mean() + std * found["scaled"], rtol=1e-6)
    errors = found["large"] - numbers[45:]
    assert large[-1]["dev_rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-9)
    assert large[-1]["dev_mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-9)
    assert large[-1]["dev_rmse"] == pytest.approx(std * scaled[-1]["dev_rmse"], rel=1e-3)
    assert large[-1]["dev_explained_variance"] == pytest.approx(scaled[-1]["dev_explained_variance"], abs=1e-3)


def test_every_command_predicts_in_the_unit_of_the_data(command: Command, numbers: Any) -> None:
    """An exported file does so without the training data, and its cells, called from Python, do, too."""
    words = "train", "graph-network", "--data", "large", *RUN, "--scale-targets", "--checkpoint", "run"
    assert command(*words, "--epochs", 2)[0] == 0
    status, _, err = command("train", "graph-network", "--checkpoint", "run", "--resume", "--epochs", 3)
    assert (status, err) == (0, "")
    assert command(*words, "--checkpoint", "whole")[0] == 0
    np.testing.assert_equal(load_checkpoint(f"run/{LAST}").arrays, load_checkpoint(f"whole/{LAST}").arrays)
    expected = command("predict", "graph-network", "--checkpoint", "run", "--data", "large/dev.txt")
    assert command("export", "graph-network", "--checkpoint", "run", "--out", "x.ab")[0] == 0
    Path("large/train.txt").unlink()
    assert command("predict", "--model", "x.ab", "--data", "large/dev.txt") == expected
    values = [json.loads(line)["value"] for line in expected[1].splitlines()]
    assert np.abs(np.array(values) - numbers[45:]).max() < numbers[:45].std() * 5
    predictor = Predictor.of(Trained(None, Path("x.ab"), is_exported=True).read())
    molecule = predictor.read(Path("large/dev.txt").read_text().splitlines()[0])
    served = predictor.write(molecule, ab.eager(predictor.model.scores, molecule))
    assert served["value"] == pytest.approx(values[0], rel=1e-6)
    loaded: Any = ab.load("x.ab")
    loaded.n_steps = predictor.model.n_steps
    scores = ab.batched(lambda x: loaded.to_unit(GraphNetwork.standard_score(loaded, x)), module=loaded)
    np.testing.assert_allclose(scores([molecule]), values[:1], rtol=1e-6)
    stored = Trained("graph-network", Path("run")).read()
    other = replace(stored, encoding=replace(stored.encoding, scales={"target_mean": 0.0, "target_std": 2.0}))
    with pytest.raises(ab.CheckpointError, match="restart the server"):
        predictor.take(other)


def test_forces_are_the_gradient_of_the_energy_in_its_unit(command: Command, tmp_path: Path) -> None:
    """Training with scaled energies and forces is bit-identical, and forces equal central differences of the energy."""
    drawn = draw_conformations(24, np.random.default_rng(0))
    large = [replace(one, energy=FACTOR * one.energy + SHIFT, forces=FACTOR * one.forces) for one in drawn]
    energies = np.array([one.energy for one in large[:18]])
    mean, std = energies.mean(), energies.std()
    scaled = [replace(one, energy=(one.energy - mean) / std, forces=one.forces / std) for one in large]
    for name, molecules in (("large", large), ("scaled", scaled)):
        (tmp_path / name).mkdir()
        for part, of_part in (("train", molecules[:18]), ("dev", molecules[18:])):
            (tmp_path / name / f"{part}.xyz").write_text("\n".join(map(str, of_part)) + "\n")
        words = "train", "molecule-forces", "--data", tmp_path / name, *RUN, "--json", tmp_path / f"{name}.jsonl"
        scale = ["--scale-targets"] if name == "large" else []
        assert command(*words, *scale, "--checkpoint", tmp_path / name / "run")[0] == 0
    results = {name: read_json(tmp_path / f"{name}.jsonl") for name in ("large", "scaled")}
    assert [one["train_loss"] for one in results["large"]] == [one["train_loss"] for one in results["scaled"]]
    given = "predict", "molecule-forces", "--checkpoint", tmp_path / "large" / "run" / LAST
    found = [json.loads(line) for line in command(*given)[1].splitlines()]
    for name, key in (("forces", "forces"), ("energies", "energy")):
        meant = np.concatenate([np.ravel(getattr(one, key)) for one in large[18:]])
        errors = np.concatenate([np.ravel(one[key]) for one in found]) - meant
        assert results["large"][-1][f"dev_rmse_of_{name}"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-9)
        assert results["large"][-1][f"dev_mae_of_{name}"] == pytest.approx(np.abs(errors).mean(), rel=1e-9)
    stored = Trained("molecule-forces", tmp_path / "large" / "run").read()
    model = Predictor.of(stored).model.astype("float64")
    molecule = stored.load_workload().dataset.dev[0]
    _, forces = ab.eager(model.scores, molecule)
    step = np.random.default_rng(1).standard_normal(molecule.positions.shape)
    sides = [float(model.energy(replace(molecule, positions=molecule.positions + h * step))) for h in (1e-4, -1e-4)]
    slope = (sides[0] - sides[1]) / 2e-4
    assert slope == pytest.approx(-float((np.array(forces) * step).sum()), rel=1e-5)
    assert abs(slope) > 1e-3


OWN = """
import numpy as np
import autobatch as ab
from autobatch.models import ModelSpec
from autobatch.models.data.dataset import Dataset
from autobatch.models.metric import count_errors, predict_numbers

class Line(ab.Module):
    def __init__(self, dim, rng, target_mean=0.0, target_std=1.0):
        self.hidden, self.output = ab.Linear(1, dim, rng=rng), ab.Linear(dim, 1, rng=rng)
        self.target_mean, self.target_std = target_mean, target_std

    @ab.cell
    def read(self, x):
        return self.output(ab.tanh(self.hidden(x)))[0]

    @ab.cell
    def to_unit(self, x):
        return self.target_mean + self.target_std * x

    @ab.cell
    def error(self, found, target):
        return ab.squared_error(found, target)

    def scores(self, pair):
        return self.to_unit(self.read(np.array(pair[:1])))

    def loss(self, pair):
        return self.error(self.read(np.array(pair[:1])), (pair[1] - self.target_mean) / self.target_std)

class Fixed(Line):
    def __init__(self, dim, rng):
        super().__init__(dim, rng)

def load(data, rng, vocabularies=None):
    pairs = [(x, 1e5 + 1e3 * x) for x in np.linspace(-1, 1, 40).tolist()]
    return Dataset(data, pairs[::2], pairs[1::2], {}, {})

def count(outputs, pairs, vocabularies):
    return {"mae": count_errors(outputs, [y for _, y in pairs])[1]}

def spec(name, model, **more):
    return ModelSpec(name, "", model, (), "nothing", "drawn", load, count_correct=count, predict=predict_numbers,
                     costs=("mae",), **more)

SPEC = spec("line", Line, target=lambda pair: pair[1])
SILENT = spec("silent", Line)
FIXED = spec("fixed", Fixed, target=lambda pair: pair[1])
CONSTANT = spec("constant", Line, target=lambda pair: 0.1)
"""


def test_a_model_of_ones_own_is_scaled(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With targets around 100,000, 60 epochs reach an error of a few units only if they are scaled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_scaled.py").write_text(OWN)
    errors = []
    for scale in ((), ("--scale-targets",)):
        words = "train", "own_scaled:SPEC", *RUN, "--epochs", 60, "--json", "x.jsonl"
        assert command(*words, *scale)[0] == 0
        errors.append(read_json(Path("x.jsonl"))[-1]["dev_mae"])
    assert errors[0] > 50_000
    assert errors[1] < 100
    for name, why in (
        ("SILENT", "the spec of silent has no target"),
        ("FIXED", "a constructor with the parameters target_mean and target_std, which that of fixed lacks"),
        ("CONSTANT", "they must be different finite numbers, from 0.1 to 0.1"),
    ):
        status, _, err = command("train", f"own_scaled:{name}", *RUN, "--scale-targets")
        assert (status, why in err, err.count("\n")) == (2, True, 1), err


@pytest.mark.parametrize("model", ["tree-lstm", "bilstm-tagger", "seq2seq"])
def test_a_model_without_numbers_is_not_scaled(model: str, command: Command) -> None:
    status, out, err = command("train", model, "--scale-targets")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"the spec of {model} has no target" in err


@pytest.mark.parametrize("targets", [[], [1.0], [0.1] * 10, [float("nan"), 1.0], [1e300, -1e300], [0, 1e-200]])
def test_targets_without_a_scale_are_refused(targets: list[float]) -> None:
    spec = replace(find_model("graph-network"), target=lambda x: x)
    data = Dataset("x", targets, [], {}, {})
    if targets:
        with pytest.raises(ab.DataError, match="must be different finite numbers"):
            spec.with_scales(data)


def test_scales_are_those_of_the_training_data() -> None:
    spec = replace(find_model("graph-network"), target=lambda x: x)
    found = spec.with_scales(Dataset("x", [1.0, 2.0, 6.0], [100.0], {}, {})).scales
    assert found == {"target_mean": 3.0, "target_std": pytest.approx(np.sqrt(14 / 3), rel=1e-15)}
