"""Test that nothing that others may have written is used: folders, files, and files exchanged meanwhile."""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from autobatch.system import cache
from autobatch.system.cache import cache_folder, find_entry, is_own, keep_entry, make_own, read_own

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners on this system")
OTHER = 65534  # the user `nobody`
AS_ROOT = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache._is_trusted.cache_clear()
    monkeypatch.setattr(cache, "_TOLD", [])
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))


def status(uid: int, mode: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("me", [0, 1000])
@pytest.mark.parametrize("owner", [0, 1000, 1001, OTHER])
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o644, 0o755, 0o664, 0o620, 0o602, 0o666, 0o775, 0o777, 0o1777, 0o2775])
def test_what_only_this_user_or_root_may_write_is_own(
    me: int, owner: int, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: me)
    for kind in (stat.S_IFREG, stat.S_IFDIR):
        assert is_own(status(owner, kind | mode)) == (owner in (0, me) and not mode & 0o022)


def kept() -> Path:
    path = keep_entry("tuning", "signature", {"number": 3})
    assert path is not None
    return path


def found() -> int | None:
    return find_entry("tuning", "signature", lambda content: int(content["number"]))


OPEN = ["775", "757", "777", "1777"]


def open_up(change: str, path: Path) -> None:
    """Give a file to another user, or let others write it."""
    if change == "of another":
        os.chown(path, OTHER, OTHER)
    else:
        path.chmod(int(change, 8))


@pytest.mark.parametrize("change", [*OPEN, pytest.param("of another", marks=AS_ROOT)])
def test_a_folder_that_others_may_write_is_no_cache(change: str, tmp_path: Path) -> None:
    kept()
    cache._is_trusted.cache_clear()
    open_up(change, tmp_path / "cache")
    with pytest.warns(UserWarning, match="it belongs to another user, or other users can write to it"):
        assert cache_folder() is None
    assert found() is None  # without another warning, which would be an error
    assert keep_entry("tuning", "signature", {"number": 4}) is None


@pytest.mark.parametrize("change", [*OPEN, pytest.param("of another", marks=AS_ROOT)])
def test_a_file_that_others_may_write_is_made_again(change: str) -> None:
    path = kept()
    open_up(change, path)
    with pytest.warns(UserWarning, match="ignoring the cache"):
        assert found() is None
    assert found() is None  # without another warning, which would be an error
    assert kept() == path
    assert found() == 3


@AS_ROOT
def test_links_count_as_what_they_lead_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, theirs = kept(), tmp_path / "theirs"
    theirs.mkdir()
    (theirs / path.name).write_bytes(path.read_bytes())
    for one in (theirs, theirs / path.name):
        os.chown(one, OTHER, OTHER)
    path.unlink()
    path.symlink_to(theirs / path.name)
    with pytest.warns(UserWarning, match="ignoring the cache"):
        assert found() is None
    cache._TOLD.clear()
    (tmp_path / "link").symlink_to(theirs)
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "link"))
    with pytest.warns(UserWarning, match="ignoring the cache"):
        assert cache_folder() is None


def test_a_file_that_is_exchanged_after_it_was_opened_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that was checked is the one that is read."""
    own, planted, look = tmp_path / "own", tmp_path / "planted", os.fstat
    own.write_bytes(b"own")
    own.chmod(0o644)
    planted.write_bytes(b"planted")

    def exchange(number: int) -> os.stat_result:
        if planted.exists():
            os.replace(planted, own)
        return look(number)

    monkeypatch.setattr("os.fstat", exchange)
    assert read_own(own) == b"own"
    assert own.read_bytes() == b"planted"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o027, 0o077])
def test_what_is_kept_is_own_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        path = kept()
        make_own(tmp_path / "other" / "folder")
    finally:
        os.umask(before)
    for one in (path, path.parent, path.parent.parent, tmp_path / "other", tmp_path / "other" / "folder"):
        assert is_own(one.stat())
        assert stat.S_IMODE(one.stat().st_mode) == (0o644 if one == path else 0o755) & ~umask
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found() == 3


PROGRAM = """
import autobatch as ab, numpy as np
@ab.cell
def f(x): return ab.sum(ab.tanh(x * 1.5) * x)
print(ab.batched(f, backend="cpu")([np.ones(3)]))
"""


class Planted:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a file for all to write", pytest.param("a file of another", marks=AS_ROOT)])
def test_code_that_was_planted_is_not_run(what: str, tmp_path: Path) -> None:
    environment = {**os.environ, "AUTOBATCH_COMPILE_WAIT": "inf", "PYTHONPATH": os.pathsep.join(sys.path)}
    (tmp_path / "program.py").write_text(PROGRAM)

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "program.py")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    first = run()
    content = pickle.dumps(Planted(tmp_path / "proof"))
    entries = [*(tmp_path / "cache").rglob("*.o")]
    assert entries
    for path in entries:
        path.write_bytes(hashlib.sha256(content).digest() + content)
        if what == "a file of another":
            os.chown(path, OTHER, OTHER)
        else:
            path.chmod(0o666)
    again = run()
    assert again.stdout == first.stdout
    assert not (tmp_path / "proof").exists()
    assert again.stderr.count("ignoring the cache") == 1
    assert run().stderr.count("is ignored") == 0  # they were built again
