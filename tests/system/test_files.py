"""Test that opened files are closed once, whenever an interrupt comes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autobatch.system.files import open_regular
from helpers.runs.interrupts import interrupts


@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning")
def test_an_interrupt_closes_the_file_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")

    def read() -> None:
        with open_regular(path) as file:
            assert file.read() == b"content"

    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []
    errors = [error for error in interrupts(open_regular, read) if error is not None]
    assert len(errors) >= 3
    assert {type(error) for error in errors} == {KeyboardInterrupt}
    del errors  # their tracebacks hold files
    assert len(os.listdir("/proc/self/fd") if before else []) == len(before)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "absent")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(OSError, match="it is not a regular file"):
            open_regular(tmp_path / "pipe")
