"""Test that the example behind Ray Serve answers like the model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_serve.py"


@pytest.mark.slow
def test_replicas_answer_as_the_model_does(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = subprocess.run(
        [sys.executable, str(EXAMPLE), "--requests", "50", "--port", str(port)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert "50 answers of 2 replicas, 0 of them wrong" in found.stdout, found.stderr
