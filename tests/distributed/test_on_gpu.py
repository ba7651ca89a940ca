"""Test groups on a GPU: over NCCL if each process has its own, over the host if two share it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import numpy as np
import autobatch as ab
from autobatch.models import find_model

spec, rng = find_model("tree-lstm"), np.random.default_rng(0)
data = spec.load("listops", rng)
model = spec.build(data, dim=32, rng=rng).astype(np.float64).to("cuda")
loss = ab.batched(model.loss)
optimizer = ab.optim.Adam(model, lr=1e-3)
graphs, values = loss.record_all(data.train[:100]), []
with ab.distributed.group() as group:
    for share in ab.distributed.shares(graphs, 32, rng):
        value, grads = loss.value_and_grad(share)
        ab.optim.clip_by_norm(grads, 1.0)
        optimizer.step(grads)
        values.append(value)
    assert all(type(value).__name__ == "Late" for value in values)
    if group.rank == 0:
        print(*map(float, values))
"""


@pytest.mark.gpu
def test_processes_with_a_gpu_train_what_one_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs PyTorch with CUDA")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    outs = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300).stdout
        for command in ([sys.executable, "train.py"], [*launch, "1", "train.py"], [*launch, "2", "train.py"])
    ]
    alone, *groups = ([float(word) for word in out.split()] for out in outs)
    assert len(alone) == 4
    for losses in groups:
        assert losses == pytest.approx(alone, rel=1e-11)
