"""Test recorded graphs in other processes: torch loaders whose workers record, and pickles of torch functions."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import autobatch as ab
import autobatch.torch as abt
from helpers.counters.jobs import CountedJobs


class Net(nn.Module):
    """A cell, and a parameter that functions outside cells read."""

    def __init__(self) -> None:
        super().__init__()
        self.a = abt.cell(nn.Linear(4, 4))
        self.w = nn.Parameter(torch.randn(4, 4))


FUNCTIONS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a function": lambda m, x: torch.tanh(m.a(x)),
    "a function of functional": lambda m, x: F.gelu(F.relu(m.a(x))),
    "a function without a name of its own": lambda m, x: F.max_pool1d(m.a(x)[None], 2),
    "a function that torch runs": lambda m, x: F.logsigmoid(m.a(x)) + torch.linalg.norm(m.a(x)),
    "a loss": lambda m, x: F.cross_entropy(m.a(x), torch.tensor(1)),
    "a method": lambda m, x: m.a(x).tanh().view(2, 2),
    "operators": lambda m, x: 1 - m.a(x) * 2 + 1 / m.a(x) ** 2,
    "operators of bools": lambda m, x: (m.a(x) > 0) & (m.a(x) < 1),
    "slices": lambda m, x: m.a(x)[1:3][..., None],
    "a dtype": lambda m, x: torch.softmax(m.a(x).bool(), 0, dtype=torch.float32) + m.a(x).to(torch.int64),
    "attributes": lambda m, x: m.a(x).reshape(2, 2).T + m.a(x).reshape(2, 2).mT,
    "a stack": lambda m, x: torch.stack([m.a(x), x]).sum(1),
    "parameters": lambda m, x: m.w[0] * (m.w @ m.a(x)),
    "a named tuple": lambda m, x: m.a(x).max(0),
    "a tuple": lambda m, x: m.a(x).split(2),
    "another dtype": lambda m, x: m.a(x) + x.half(),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_of_torch_are_found_by_name(case: str) -> None:
    torch.manual_seed(0)
    model, function = Net(), FUNCTIONS[case]
    here, there = (abt.batched(lambda x: function(model, x), module=model, backend="reference") for _ in range(2))
    xs = [torch.randn(4) for _ in range(2)]
    torch.testing.assert_close(there(pickle.loads(pickle.dumps(here.record_all(xs)))), here(xs))


PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader
import autobatch.torch as abt

def doubled(module, args, y):
    return 2 * y

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = abt.cell(nn.Linear(3, 3))
        self.a.register_forward_hook(doubled)

    @abt.batched(backend="reference")
    def loss(self, item):
        h = torch.zeros(3)
        for x in item:
            h = torch.tanh({of_x})
        return {of_h}

if __name__ == "__main__":
    model = Net()
    items = [torch.randn(2 + k % 3, 3) for k in range(8)]
    loader = DataLoader(items, 4, collate_fn=model.loss.record_all, num_workers=2, multiprocessing_context={start!r})
    found = torch.cat([model.loss(graphs) for graphs in loader])
    torch.testing.assert_close(found, model.loss(items))
    print("right")
"""
STARTS = [pytest.param(start, marks=pytest.mark.slow) for start in ("spawn", "forkserver")]


def run(tmp_path: Path, **texts: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(**texts))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", *STARTS])
def test_workers_record_what_stands_outside_of_cells(start: str, tmp_path: Path) -> None:
    done = run(tmp_path, start=start, of_x="self.a(x + h)", of_h="h.sum()")
    assert done.stdout == "right\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", *STARTS])
def test_a_cell_without_a_name_is_an_error_of_the_worker(start: str, tmp_path: Path) -> None:
    done = run(tmp_path, start=start, of_x="abt.cell(lambda x: 2 * x)(self.a(x))", of_h="h.sum()")
    assert "cannot pickle a recorded graph: cell '<lambda>' must not depend on objects" in done.stderr


@pytest.mark.slow
def test_a_result_without_a_name_is_an_error_of_the_worker(tmp_path: Path) -> None:
    done = run(tmp_path, start="fork", of_x="self.a(x)", of_h="(h.sum(), lambda: 0)")
    assert "results of its function must not hold objects that another process" in done.stderr


@pytest.mark.parametrize("n_workers", [0, 2], ids=["recorded here", "recorded by workers"])
def test_mini_batches_of_a_loader_are_planned_ahead(n_workers: int) -> None:
    """With graphs that were recorded here, or by the workers; gradients are those of the whole mini-batch."""
    torch.manual_seed(0)
    model = Net()
    run = abt.batched(lambda x: torch.tanh(model.a(x)).sum(), module=model, backend="reference", policy="score")
    xs = [torch.randn(4) for _ in range(12)]
    given, collate = (xs, run.record_all) if n_workers else (run.record_all(xs), list)
    loader = DataLoader(given, batch_size=3, collate_fn=collate, num_workers=n_workers)  # type: ignore[arg-type]
    with patch("autobatch.engine.planning.usable_cores", return_value=2), CountedJobs() as counted:
        for batch in ab.plan_ahead(loader, 2):
            run(batch).mean().backward()
    found = [x.grad.clone() for x in model.a.parameters() if x.grad is not None]
    assert len(found) == 2
    assert (counted.begun, counted.used) == (3, 3)
    model.zero_grad()
    (run(xs).mean() * 4).backward()
    torch.testing.assert_close(found, [x.grad for x in model.a.parameters()])
