"""Records of experiments: a digest of the code that they measure, and stale records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import records
from digest import RUNTIME, digest_of
from helpers.runs.ways import each
from records import Findings, Settings, Start, origins, read_record, write_whole

CODE = '''"""What it is for."""

LIMIT = 3
"""How many."""


def double(x: int) -> int:
    """Double it."""
    # that is all
    return 2 * x
'''
SETTINGS = Settings(seed=7)


def make_package(root: Path, code: str) -> Path:
    """Write a package with one module, and one for GPUs; return its parent folder."""
    (root / "pack" / "cuda").mkdir(parents=True, exist_ok=True)
    for name in ("cuda/kernels.py", "other.py"):
        (root / "pack" / name).write_text("x = 1\n")
    (root / "pack" / "module.py").write_text(code)
    return root


@each(
    "before, after, is_other",
    [
        ("# that is all", "# which is a lot", False),
        ('"""Double it."""', '"""Give twice as much."""', False),
        ('"""How many."""', '"""At most so many."""', False),
        ("return 2 * x", "return (2 *  x)", False),
        ("return 2 * x", "return 3 * x", True),
        ("LIMIT = 3", "LIMIT = None", True),
        ("LIMIT = 3", "LIMIT = 4", True),
        ("x: int", "y: int", True),
    ],
)
def test_a_digest_tells_what_code_does_and_not_how_it_is_explained(
    tmp_path: Path, before: str, after: str, is_other: bool
) -> None:
    expected = digest_of(["pack"], make_package(tmp_path, CODE))
    assert (digest_of(["pack"], make_package(tmp_path, CODE.replace(before, after))) != expected) is is_other


def test_a_digest_is_alike_in_all_versions_of_python(tmp_path: Path) -> None:
    """Python 3.11 made the pinned digest; 3.12 and 3.13 parse f-strings differently."""
    code = CODE + "\n\ndef show(x: float, width: int) -> str:\n    return f'{x:>{width}}'\n"
    assert digest_of(["pack.module"], make_package(tmp_path, code))[:12] == "4e996766ae8a"


def test_a_digest_is_of_the_modules_that_prefixes_name(tmp_path: Path) -> None:
    make_package(tmp_path, CODE)
    prefixes = ["pack"], ["pack.module"], ["pack.cuda"]
    before = [digest_of(some, tmp_path) for some in prefixes]
    (tmp_path / "pack" / "cuda" / "kernels.py").write_text("x = 2\n")
    after = [digest_of(some, tmp_path) for some in prefixes]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False]
    with pytest.raises(FileNotFoundError, match=r"measures pack\.nothing, but there is no such module"):
        digest_of(["pack.nothing"], tmp_path)


def test_the_modules_of_the_runtime_are_there() -> None:
    assert len(digest_of(RUNTIME)) == 64


def test_a_record_is_finished_while_settings_and_code_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    monkeypatch.setattr(records, "digest_of", lambda modules: "of today")
    start = Start.now("experiment", SETTINGS, ["pack"])
    assert not start.is_finished(path)
    start.write(path, Findings({"way": [0.12345678]}, {"count": 3}, "a table"))
    record = read_record(path)
    assert (record.figures, record.seconds) == ({"count": 3}, {"way": [0.1235]})
    assert record.settings == {"seed": 7, "threads": 1}
    assert start.is_finished(path)
    assert not Start.now("experiment", Settings(seed=8), ["pack"]).is_finished(path)
    assert not record.is_stale
    assert "changed" not in origins([record])
    monkeypatch.setattr(records, "digest_of", lambda modules: "of tomorrow")
    assert not Start.now("experiment", SETTINGS, ["pack"]).is_finished(path)
    assert record.is_stale
    assert origins([record]).endswith(". The code has changed since.")


def test_a_record_without_a_digest_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    Start.now("experiment", SETTINGS, ["autobatch.errors"]).write(path, Findings({}, {}, ""))
    content: dict[str, Any] = json.loads(path.read_text())
    del content["code"]
    path.write_text(json.dumps(content))
    assert read_record(path).is_stale


def test_writing_that_is_interrupted_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    write_whole(path, "first")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "second")
    assert path.read_text() == "first"
