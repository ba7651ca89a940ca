"""Test damaged files: none loads with other content, and none crashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.workload import load_workload
from autobatch.deploy.cases import read_case
from autobatch.params.checkpoint import load_checkpoint, save_checkpoint

VERSIONS = Path(__file__).parent / "versions"
ARRAYS = {"weight": np.arange(6.0).reshape(2, 3), "ids": np.arange(4), "none": np.zeros((0, 2), np.float32)}
STATE = {"epoch": 3, "best": 0.5, "names": ["a", "b"]}


def damage(rng: np.random.Generator, content: bytes) -> bytes:
    """Damage a file: flip a bit, change a byte, lose, repeat, zero or move some bytes, or cut off the end."""
    first, second = sorted(rng.integers(0, len(content), 2).tolist())
    n = int(rng.integers(1, 64))
    match rng.integers(7):
        case 0:
            return content[:first] + bytes([content[first] ^ 1 << int(rng.integers(8))]) + content[first + 1 :]
        case 1:
            return content[:first] + bytes([int(rng.integers(256))]) + content[first + 1 :]
        case 2:
            return content[:first] + content[first + n :]
        case 3:
            return content[: first + n] + content[first:]
        case 4:
            return content[:first] + bytes(min(n, len(content) - first)) + content[first + n :]
        case 5:
            return content[:first] + content[second : second + n] + content[first + n :]
    return content[:first]


def of_checkpoint(path: Path) -> Any:
    arrays, state = load_checkpoint(path)
    return {k: (x.dtype.str, x.shape, x.tobytes()) for k, x in arrays.items()}, state


def of_module(path: Path) -> Any:
    model = ab.LSTMCell(2, 3, rng=np.random.default_rng(1))
    model.load(path)
    return {k: x.tobytes() for k, x in model.state_dict().items()}


def of_policy(path: Path) -> Any:
    policy: Any = ab.policies.load(path)
    return policy.describe(), policy.direction, policy.compact, policy.about


def of_model(path: Path) -> Any:
    model = ab.load(path)
    cells = {
        (name, key): [(text, str(x.program), x.structure) for text, x in cell._variants.items()]
        for name, part in model._named_parts()
        for key, cell in vars(type(part)).items()
        if hasattr(cell, "_variants")
    }
    return {k: x.tobytes() for k, x in model.state_dict().items()}, cells, model.options


def of_case(path: Path) -> Any:
    case = read_case(path)
    arrays: list[Any] = [case.words, case.floats, case.keys, *(p.data for p in case.parameters.values())]
    texts = [(t.name, str(t.program), t.program.ties, t.signature, t.outline, t.sum_type) for t in case.types]
    return [x.tobytes() for x in arrays], texts, case.slots, [*case.parameters], case.setting, case.versions


def write_module(path: Path) -> None:
    ab.LSTMCell(2, 3, rng=np.random.default_rng(0)).save(path)


def write_policy(path: Path) -> None:
    workload = load_workload("tree-lstm", None, 4, 0)
    workload.batched("loss", "agenda", "reference").learn_policy([workload.first(3)], seed=0).save(path)


def write_model(path: Path) -> None:
    workload = load_workload("tree-lstm", None, 2, 0)
    workload.model.eval()
    ab.export(workload.batched("loss", "agenda", "reference"), path, examples=workload.first(2))


def write_case(path: Path) -> None:
    workload = load_workload("tree-lstm", None, 2, 0)
    ab.testing.dump(workload.batched("loss", "agenda", "reference"), workload.first(2), path, training=True)


FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "checkpoint": (lambda path: save_checkpoint(path, ARRAYS, STATE), of_checkpoint),
    "parameters": (write_module, of_module),
    "policy": (write_policy, of_policy),
    "model": (write_model, of_model),
    "case": (write_case, of_case),
}


def check(name: str, folder: Path, n: int) -> None:
    write, read = FORMATS[name]
    path = folder / "file"
    write(path)
    content, expected = path.read_bytes(), read(path)
    rng, n_refused = np.random.default_rng(0), 0
    for _ in range(n):
        damaged = damage(rng, content)
        path.write_bytes(damaged)
        try:
            found = read(path)
        except ab.AutobatchError:
            n_refused += 1
        else:
            assert found == expected
    assert n_refused > 0.9 * n


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 300)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 10_000)


@pytest.mark.parametrize("path", sorted(VERSIONS.iterdir()), ids=lambda path: path.name)
def test_files_of_earlier_versions_load(path: Path) -> None:
    """Each file was written by the first version of autobatch with its format version."""
    read = FORMATS[path.name.partition("-")[0]][1]
    assert read(path)
    if path.name.startswith("checkpoint"):
        arrays, state = load_checkpoint(path)
        assert state == STATE
        assert all(np.array_equal(arrays[name], x) and arrays[name].dtype == x.dtype for name, x in ARRAYS.items())
