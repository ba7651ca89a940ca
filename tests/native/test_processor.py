"""Test that native loops are bit-identical on every processor; each instruction set runs in a subprocess."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autobatch import _native
from autobatch.system.processor import has_amx

ROOT = Path(__file__).parents[2]
DISABLED = ("", "amx", "avx512", "avx2")


def digest() -> tuple[tuple[bool, bool, bool], str]:
    """Return which products the processor has, and a digest of the results of rules, sums and roundings."""
    rng, found = np.random.default_rng(0), hashlib.sha256()
    for dtype in (np.float32, np.float64):
        for size in (1, 3, 4, 7, 8, 15, 16, 33, 1000):
            for n_states in range(3):
                data, grad = rng.standard_normal((2, size)).astype(dtype)
                state = [np.abs(rng.standard_normal(size)).astype(dtype) if k < n_states else None for k in range(2)]
                constants = rng.random(9).astype(dtype)
                _native.update_dense((1, size, size), data, state[0], state[1], grad, size, constants)
                for array in (data, *state):
                    found.update(b"" if array is None else array.tobytes())
            work, ids, sums = np.zeros((4, 9), np.int64), np.zeros(9, np.int64), np.zeros(9 * size, dtype)
            work[0] = rng.integers(0, 3, 9)
            values = rng.standard_normal(9 * size).astype(dtype)
            n_ids = _native.sum_rows(9, work, values, 0, size, size, ids, sums)
            found.update(sums[: n_ids * size].tobytes())
    return _native.find_features(), found.hexdigest()


def test_no_bit_depends_on_the_instructions() -> None:
    found = {}
    for disabled in DISABLED:
        environment = {**os.environ, "AUTOBATCH_DISABLE_CPU_FEATURES": disabled}
        call = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import json, test_processor as t; "
        command = [sys.executable, "-c", call + "print(json.dumps(t.digest()))"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found[disabled] = json.loads(done.stdout)
    assert found["avx512"][0] == found["avx2"][0] == [False, False, False]
    assert found["amx"][0] == [*found[""][0][:2], False]
    assert len({digest for _, digest in found.values()}) == 1


@pytest.mark.skipif(not has_amx(), reason="needs AMX")
def test_products_without_amx() -> None:
    """Runs the tests of products on this processor with AMX disabled."""
    environment = {**os.environ, "AUTOBATCH_DISABLE_CPU_FEATURES": "amx"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/blas/test_packed.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
