"""Test the code in `docs/howto/torch_training.md`: it runs with PyTorch's tools, and learns as without them."""

from __future__ import annotations

import doctest
import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import autograd

from checkout import ROOT

PAGE = (ROOT / "docs" / "howto" / "torch_training.md").read_text(encoding="utf-8")
BLOCKS = [
    block for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if ">>>" not in block
]
FIRST = PAGE[: PAGE.index("## DataLoader")]
MODEL = "".join(example.source for example in doctest.DocTestParser().get_examples(FIRST.replace("```", "")))


def block_with(text: str) -> str:
    """Return the only code block of the page that contains a text."""
    found: str
    (found,) = (block for block in BLOCKS if text in block)
    return found


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(code, names)
    return names


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOBATCH_BACKEND", "reference")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    text = block_with("DistributedDataParallel")
    script = tmp_path / "script.py"
    script.write_text(
        f"{MODEL}\n{text}\n"
        "torch.save([p.detach() for p in model.parameters()], f'parameters-{rank}.pt')\n"
        "distributed.destroy_process_group()\n",
        encoding="utf-8",
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    about = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, str(script)]
    started = [subprocess.Popen(command, env={**about, "RANK": rank}, cwd=tmp_path) for rank in "01"]
    assert [process.wait(timeout=300) for process in started] == [0, 0]
    names = run(MODEL, __name__="page")  # the page creates a model, as each process does before its own
    model, items = names["TreeNet"](5, 8), names["items"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        autograd.backward(model(items).mean())
        optimizer.step()
    first, second = (torch.load(tmp_path / f"parameters-{rank}.pt", weights_only=True) for rank in range(2))
    for own, other, alone in zip(first, second, model.parameters(), strict=True):
        assert torch.equal(own, other)
        torch.testing.assert_close(own, alone.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["lightning", "transformers"])
def test_trainers_train_it(tool: str, tmp_path: Path) -> None:
    if find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed: pip install '.[interop]'")
    script = tmp_path / "script.py"
    trained = "trainer.model" if tool == "transformers" else "trainer.model.net"
    script.write_text(
        f"{MODEL}\nfrom torch.utils.data import DataLoader\n{block_with(f'import {tool}')}\n"
        f"found = {trained}.cpu()(items)\n"
        "losses = found['losses'] if isinstance(found, dict) else found\n"
        "print('mean loss:', float(losses.mean()))\n",
        encoding="utf-8",
    )
    told = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    (loss,) = re.findall(r"mean loss: (.*)", told.stdout)
    assert 0 <= float(loss) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_of_a_loader_record(start: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{MODEL}\nfrom torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        f"    loader = DataLoader(items, 4, num_workers=2, multiprocessing_context={start!r},\n"
        "                        collate_fn=model.forward.record_all)\n"
        "    found = torch.cat([model(graphs) for epoch in range(2) for graphs in loader])\n"
        "    print('same:', torch.equal(found, model(items).repeat(2)))\n",
        encoding="utf-8",
    )
    told = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "same: True" in told.stdout


@pytest.mark.slow
def test_the_oldest_torch_that_is_supported() -> None:
    """Run with a local install only: the Linux wheels of torch bring several GB of CUDA."""
    python = os.environ.get("AUTOBATCH_OLDEST_TORCH")
    if python is None:
        pytest.skip("AUTOBATCH_OLDEST_TORCH names no Python that has torch 2.5 and what the tests need")
    asked = [python, "-c", "import torch; print(torch.__version__)"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout.startswith("2.5.")
    command = [python, "-m", "pytest", "-q", "-n", "0", "-m", "not gpu", "tests/in_torch"]
    rest = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOBATCH_", "PYTEST_"))}
    about = {**rest, "PYTHONPATH": str(ROOT)}
    told = subprocess.run(command, cwd=ROOT, env=about, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout
