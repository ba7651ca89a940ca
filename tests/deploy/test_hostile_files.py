"""Test files with manipulated content and a valid checksum: they are refused with a sentence, or harmless."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.params.checkpoint import read_safetensors, write_arrays
from helpers.runs.ways import each

VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 10**30, lambda: 10**9, lambda: 1.5, lambda: float("nan"),
    lambda: "", lambda: "__del__", lambda: "__class__", lambda: "os.system", list, dict, lambda: [[]],
    lambda: ["int", "x"], lambda: ["array", "weight"], lambda: ["op", "tanh", [0], {}], lambda: nested(300),
    lambda: ["op", "normal", [], {"shape": ["tuple", ["int", 10**9]], "site": ["int", 0]}],
    lambda: ["dtype", "O"], lambda: ["slice", None, None, ["int", 0]], lambda: ["float", "nan"],
)  # fmt: skip


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


class Net(ab.Module):
    """A cell for each kind of argument."""

    def __init__(self) -> None:
        self.layers = [ab.Linear(3, 3, rng=np.random.default_rng(0))]
        self.table = ab.Embedding(4, 3, rng=np.random.default_rng(0))
        self.drop = ab.Dropout(0.5)
        self.eval()

    @ab.cell
    def leaf(self, word: int, scale: float = 0.5) -> Any:
        return {"h": self.drop(self.table(word)) * scale}

    @ab.cell(static=("axis",))
    def join(self, hs: list[Any], axis: int = 0) -> Any:
        return ab.softmax(self.layers[0](ab.sum_n([ab.tanh(h) for h in hs], shape=(3,)))[0:3], axis=axis)

    def run(self, words: list[int]) -> Any:
        return self.join([self.leaf(word)["h"] for word in words])


def first(x: Any) -> Any:
    """Return the first value of a result; a file may claim another structure."""
    while isinstance(x, dict | list | tuple) and len(x):
        x = next(iter(x.values() if isinstance(x, dict) else x))
    return x


def takes_one(model: Any, cell: str) -> bool:
    """Return whether a cell takes one argument; a file may claim others."""
    try:
        vars(type(model))[cell].signature.bind(model, 0)
    except (KeyError, TypeError):
        return False
    return True


def use(path: Path) -> None:
    model = ab.load(path)
    if takes_one(model, "leaf") and takes_one(model, "join"):
        run = ab.batched(
            lambda words: model.join([first(model.leaf(w)) for w in words]), module=model, backend="reference"
        )
        run([[0, 1], [2]])


def places(x: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each nested value."""
    for key, part in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield (*path, key)
        yield from places(part, (*path, key))


def mutated(content: Any, rng: np.random.Generator) -> Any:
    """Copy content with one or two values changed, dropped, renamed or duplicated."""
    content = json.loads(json.dumps(content))
    for _ in range(int(rng.integers(1, 3))):
        found = list(places(content))
        *above, key = found[int(rng.integers(len(found)))]
        at = content
        for step in above:
            at = at[step]
        match int(rng.integers(6)):
            case 0 if isinstance(at, dict):
                del at[key]
            case 1 if isinstance(at, dict):
                at[("__del__", "__init__", "", "x.y", "load", "h")[int(rng.integers(6))]] = at.pop(key)
            case 2 if isinstance(at, list):
                at.insert(int(rng.integers(len(at) + 1)), json.loads(json.dumps(at[key])))
            case 3 if type(at[key]) is int:
                at[key] += int(rng.integers(-3, 4))
            case _:
                at[key] = VALUES[int(rng.integers(len(VALUES)))]()
    return content


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.ab"
    ab.export(Net().run, path, examples=[[0, 1], [2]], longest=3)
    return path


def check(exported: Path, folder: Path, n: int, seed: int) -> None:
    arrays, metadata = read_safetensors(exported, "ab.export")
    content, rng, told = json.loads(metadata["content"]), np.random.default_rng(seed), list[str]()
    use(exported)
    for number in range(n):
        changed = json.dumps(mutated(content, rng))
        write_arrays(folder / "changed.ab", arrays, {**metadata, "content": changed}, "writing")
        try:
            use(folder / "changed.ab")
        except ab.AutobatchError as error:
            told.append(str(error))
        except Exception as error:
            pytest.fail(f"change {number} of seed {seed}: {type(error).__name__}: {error}")
    n_refused = len(told)
    assert not [text for text in told if "\n" in text]
    assert n_refused > n // 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_hostile_exports_are_refused_in_a_sentence(exported: Path, tmp_path: Path) -> None:
    check(exported, tmp_path, 150, seed=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_thousands_of_hostile_exports_are_refused_in_a_sentence(exported: Path, tmp_path: Path) -> None:
    check(exported, tmp_path, 4000, seed=1)


@each("name", ["__del__", "__init__", "__getattr__", "__class__", "load", "train", "_source", "eval"])
def test_a_cell_with_a_name_that_means_something_is_refused(name: str, exported: Path, tmp_path: Path) -> None:
    arrays, metadata = read_safetensors(exported, "ab.export")
    content = json.loads(metadata["content"])
    content["cells"][0]["name"] = name
    write_arrays(tmp_path / "changed.ab", arrays, {**metadata, "content": json.dumps(content)}, "writing")
    with pytest.raises(ab.CheckpointError, match=r"the name of a cell must not be reserved, got"):
        ab.load(tmp_path / "changed.ab")
