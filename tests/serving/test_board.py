"""Test numbers that the workers behind one port share in memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.serving import workers as boards
from autobatch.serving.workers import BUCKETS, SECONDS, SUM, Board, Workers, make_memory

STATUSES = [100, 200, 400, 422, 500, 599]
UPDATE = "import sys; from autobatch.serving.workers import Board; Board.here().count(int(sys.argv[1]), 0.5)"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_add_up(seed: int, in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    rng, n = np.random.default_rng(seed), 3
    number = make_memory(n)
    made = [Board(mmap.mmap(number, 0), row) for row in range(n)]
    os.close(number)
    expected, seconds = Counter[int](), list[float]()
    for _ in range(100):
        status, took = int(rng.choice(STATUSES)), float(rng.choice([0.0005, *SECONDS, 50.0]))
        made[int(rng.integers(n))].count(status, took)
        expected[status] += 1
        seconds.append(took)
    for board in made:
        assert dict(board.statuses()) == expected
        assert board.total(SUM) == pytest.approx(sum(seconds))
        for k, limit in enumerate(SECONDS):
            within = sum(board.total(BUCKETS + j) for j in range(k + 1))
            assert within == sum(took <= limit for took in seconds)


def test_what_a_process_had_ends_with_it_and_its_counts_stay() -> None:
    number = make_memory(2)
    one, other = (Board(mmap.mmap(number, 0), row) for row in range(2))
    one.show({"waiting": 3, "running": 2, "rows": 1.5, "round_s": 0.1})
    one.count(200, 0.1)
    assert other.gauges("waiting") == [3, 0]
    other.clear(0)
    assert [other.gauges(name) for name in boards.GAUGES] == [[0, 0]] * 4
    assert dict(other.statuses()) == {200: 1}
    for status in ("200", "500"):  # a worker that replaces another
        environment = {**os.environ, boards.VARIABLE: f"{number} 1", "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", UPDATE, status], env=environment, pass_fds=[number], check=True)
    os.close(number)
    assert dict(one.statuses()) == {200: 2, 500: 1}


def test_the_live_page_shows_living_workers(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    (tmp_path / "live-of-others.json").write_text("{}")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        for pid, done in ((living.pid, 1), (os.getpid(), 2)):
            (tmp_path / f"live-{pid}.json").write_text(f'{{"done": {done}}}')
        found: Any = workers.others()
        assert found == [{"done": 1}]
        living.kill()
        living.wait()
        assert workers.others() == []
