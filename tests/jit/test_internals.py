"""Where Numba's internals are not those that autobatch extends, plain Numba compiles the same program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PRETENCE = """
import json, sys, warnings
import numba.core.caching, numba.core.ccallback, numba.core.codegen, numba.core.dispatcher, numba.core.event
import numpy as np

missing = sys.argv[1]
if missing == "method":
    del numba.core.codegen.JITCodeLibrary  # Numba itself holds the class elsewhere
elif missing == "attribute":
    class Renamed(numba.core.caching.FunctionCache):
        def __init__(self, function):
            super().__init__(function)
            del self._cache_file
    numba.core.caching.FunctionCache = Renamed
elif missing == "module":
    del numba.core.event
    sys.modules["numba.core.event"] = None
"""
LOOPS = """
from autobatch.jit.addresses import address_of, array_at
from autobatch.jit.compiling import watch_compilation
from autobatch.jit.loops import by_address, compiled, contracted, reordered

@contracted
def cube(x):
    return x * x * x

@reordered
def add_cube(total, x):
    return total + cube(x)

@compiled
def add_up(x, step):
    total = 0.0
    for i in range(0, x.size, step):
        total = add_cube(total, x[i])
    return total

@compiled
def sums(x):
    return add_up(x, 1), add_up(x, 2)

@by_address
def store(place, number):
    array_at(place, np.int64)[0] = number * number

def run():
    import ctypes
    place, x = np.zeros(1, np.int64), np.random.default_rng(0).standard_normal(1000)
    with watch_compilation(lambda compilation: None):
        found = sums(x)
        ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(store.address)(address_of(place), 7)
    return [*map(float.hex, found), int(place[0])]
"""
MODEL = """
import autobatch as ab
from autobatch.models.data.listops import N_CLASSES, draw_trees
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.backends.cpu.backend import Cpu

def run():
    rng = np.random.default_rng(0)
    drawn = draw_trees(4, rng, max_depth=2)
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    model = TreeLSTM(n_words=len(vocabulary), dim=4, n_classes=N_CLASSES, rng=rng)
    loss = ab.batched(model.loss, policy="score", backend=Cpu(jitted=True))
    value, grads = loss.value_and_grad([vocabulary.encode(tree) for tree in drawn])
    return [float(value).hex(), {name: np.asarray(grad).tobytes().hex() for name, grad in grads.items()}]
"""
ANSWER = """
from autobatch.jit.internals import has_internals

with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    result = run()
told = [str(one.message) for one in told if "Numba" in str(one.message)]
print(json.dumps({"extended": has_internals(), "told": told, "result": result}))
"""
MISSING = {
    "method": "numba.core.codegen.JITCodeLibrary._optimize_final_module",
    "attribute": "numba.core.caching.FunctionCache._cache_file",
    "module": "numba.core.event.register",
}
"""What is pretended to be missing, and how the warning names it."""


def run_program(program: str, missing: str, folder: Path) -> dict[str, Any]:
    """Run a program in a process of its own, with a cache of its own: twice, so that what was kept is loaded too."""
    folder.mkdir()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "AUTOBATCH_CACHE": "off"}
    script = folder / "program.py"
    script.write_text(PRETENCE + program + ANSWER)
    command = [sys.executable, str(script), missing]
    texts = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    found: dict[str, Any] = json.loads(texts[0])
    return found


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the loops give with our compilers and caches."""
    return run_program(LOOPS, "nothing", tmp_path_factory.mktemp("extended") / "cache")


def check_plain(ours: dict[str, Any], plain: dict[str, Any], missing: str) -> None:
    """Plain Numba ran, said so once, and gave the same results."""
    assert (ours["extended"], ours["told"], plain["extended"]) == (True, [], False)
    (told,) = plain["told"]
    assert MISSING[missing] in told
    assert plain["result"] == ours["result"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("missing", MISSING)
def test_plain_numba_gives_the_same_results_bit_by_bit(missing: str, extended: dict[str, Any], tmp_path: Path) -> None:
    assert extended["result"][2] == 49
    check_plain(extended, run_program(LOOPS, missing, tmp_path / "plain"), missing)


@pytest.mark.slow
def test_plain_numba_trains_a_model_with_the_same_results_bit_by_bit(tmp_path: Path) -> None:
    ours, plain = (run_program(MODEL, missing, tmp_path / missing) for missing in ("nothing", "method"))
    check_plain(ours, plain, "method")
