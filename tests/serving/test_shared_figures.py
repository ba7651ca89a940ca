"""Test the figures that workers behind one port exchange."""

from __future__ import annotations

import shutil
from pathlib import Path

from autobatch.serving.workers import Workers


def test_a_folder_that_cannot_be_written_is_a_fault_and_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    workers = Workers(folder)
    for _ in range(2):
        workers.publish({"done": 1})
        assert workers.others() == []
        assert workers.fault == "a worker cannot write the figures that workers share: No such file or directory"
        folder.mkdir()
        workers.publish({"done": 1})
        assert "cannot ask for" in workers.fault
        assert workers.others() == []
        assert workers.fault == ""
        assert workers.is_wanted
        shutil.rmtree(folder)
