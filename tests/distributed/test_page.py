"""Test the page's script on several processes, as a reader runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "several_processes.md"


@pytest.mark.slow
def test_the_script_prints_the_same_losses_on_one_process_and_on_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "train.py").write_text(script)
    several = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    outs = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300).stdout
        for command in ([sys.executable, "train.py"], several)
    ]
    losses = [[float(line.split()[1]) for line in out.splitlines()] for out in outs]
    assert len(losses[0]) == 3
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
