"""Test that no argument crashes the native core: invalid ones are refused or have a result, and nothing leaks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch._native import find_features
from helpers.runs import entries
from helpers.runs.entries import NEEDS, REFUSALS, aliases, copied, draw_call, examples, functions, parameters, text_of

ROOT = Path(__file__).parents[2]
DTYPES = {
    "IntArray": np.int32,
    "LongArray": np.int64,
    "FloatArray": np.float64,
    "NDArray[np.bool_]": np.bool_,
    "NDArray[np.int16]": np.int16,
    "NDArray[np.float32]": np.float32,
    "NDArray[np.uint32]": np.uint32,
}
N_LEAKING, MOST_BYTES = 100_000, 2 << 20
SECONDS = 600
FEATURES = find_features()
NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in NEEDS and not FEATURES[NEEDS[name]], reason="the processor lacks instructions"
        ),
    )
    for name in sorted(functions())
]


def call_all(start: int, stop: int) -> str:
    """Make invalid calls in a subprocess; return the last line that it wrote."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("tests", "tools", "experiments"))
    asan = os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1:max_allocation_size_mb=4096"
    env = {**os.environ, "PYTHONPATH": paths, "ASAN_OPTIONS": asan, "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-m", "helpers.runs.entries", f"{start}:{stop}"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    lines = done.stdout.splitlines()
    last = next((line for line in reversed(lines) if line.isdecimal()), "none")
    assert done.returncode == 0, f"call {last} ended the process: {done.returncode}\n{done.stderr[-3000:]}"
    wrong = [line for line in lines if line.startswith("wrong")]
    assert not wrong, wrong[:5]
    return lines[-1]


def test_wrong_arguments_crash_nothing() -> None:
    assert call_all(0, 4000).startswith("counts")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(10_000, 410_000, 100_000))
def test_many_wrong_arguments_crash_nothing(start: int) -> None:
    assert call_all(start, start + 100_000).startswith("counts")


def test_a_number_draws_one_call() -> None:
    for seed in range(50):
        (name, args), (other, again) = draw_call(seed), draw_call(seed)
        assert name == other
        assert text_of(args) == text_of(again) or "object at 0x" in text_of(args)


@pytest.mark.parametrize("name", NAMES)
def test_every_function_is_called_as_its_types_say(name: str) -> None:
    """To add an example for a function, call it in `helpers.runs.entries.work`."""
    assert set(functions()) == set(parameters())
    for args in examples(0).get(name, []) + examples(1).get(name, []):
        assert len(args) == len(parameters()[name])
        for arg, (parameter, annotation) in zip(args, parameters()[name].items(), strict=True):
            if annotation in DTYPES:
                assert isinstance(arg, np.ndarray), parameter
                assert arg.dtype == DTYPES[annotation], parameter
            elif not (arg is None and annotation.endswith(" | None")):
                names = [one.__name__ for one in type(arg).__mro__] + ["NDArray"] * isinstance(arg, np.ndarray)
                kind = annotation.removesuffix(" | None")
                meant = aliases().get(kind, kind).partition("[")[0]
                assert meant in (*names, "bool", "Any"), parameter
        functions()[name](*copied(args))
    assert examples(0).get(name), "no example"


def counts_of(x: Any) -> list[int]:
    """Return the reference counts of the arrays and tuples in an argument."""
    parts = [count for part in x for count in counts_of(part)] if isinstance(x, tuple) else []
    return [sys.getrefcount(x), *parts] if isinstance(x, (tuple, np.ndarray)) else []


@pytest.mark.slow
@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_kept_of_what_is_given(name: str, is_wrong: bool) -> None:
    """Makes valid calls, and calls that fail late because the last argument, or its last part, is invalid.

    NumPy keeps some freed blocks of up to 1,024 bytes, so traced memory may grow by a few of them. One leaked object
    per call would be at least 16 bytes.
    """
    args = copied(examples(0)[name][0])
    if is_wrong:
        *others, last = args or ((),)
        args = (*others, (*last[:-1], None) if isinstance(last, tuple) else None)
    function, before = functions()[name], counts_of(args)

    def call(n: int) -> int:
        for _ in range(n):
            with suppress(*REFUSALS):
                function(*args)
        gc.collect()
        return next(entries.sizes())

    call(2000)
    tracemalloc.start()
    call(1000)
    traced = tracemalloc.get_traced_memory()[0]
    call(1000)
    grown = tracemalloc.get_traced_memory()[0] - traced
    tracemalloc.stop()
    assert grown < 8 * 1000
    size = call(1)
    assert call(N_LEAKING) - size < MOST_BYTES
    assert counts_of(args) == before
