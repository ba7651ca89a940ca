"""Test the user's cache: its location, damaged entries, and concurrent processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autobatch.system import cache
from autobatch.system.cache import cache_folder, find_code, find_entry, keep_code, keep_entry

SIGNATURE = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder."""
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keep(number: float = 0.65) -> Path | None:
    return keep_entry("tuning", SIGNATURE, {"number": number})


def load(content: Mapping[str, Any]) -> float:
    return float(content["number"])


@pytest.mark.parametrize("value", ["", "0", "off", " OFF "])
def test_the_cache_can_be_switched_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", value)
    assert cache_folder() is None
    assert keep() is None
    assert find_entry("tuning", SIGNATURE, load) is None


@pytest.mark.parametrize(
    ("platform", "name", "expected"),
    [
        ("linux", "posix", "home/.cache/autobatch"),
        ("darwin", "posix", "home/Library/Caches/autobatch"),
        ("win32", "nt", "local/autobatch"),
    ],
)
def test_the_cache_is_where_the_system_keeps_caches(
    platform: str, name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOBATCH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(cache, "IS_WINDOWS", name == "nt")
    assert cache_folder() == tmp_path / expected
    if platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache_folder() == tmp_path / "xdg" / "autobatch"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        assert cache_folder() == tmp_path / expected


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("AUTOBATCH_CACHE")
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder() is None


def test_what_is_kept_is_found_and_nothing_else(folder: Path) -> None:
    path = keep(0.25)
    assert path == folder / "tuning" / f"{SIGNATURE}.json"
    assert find_entry("tuning", SIGNATURE, load) == 0.25
    assert find_entry("layouts", SIGNATURE, load) is None
    assert find_entry("tuning", "another", load) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", json.dumps({"format": "x"}).encode()])
def test_a_damaged_entry_is_told_and_replaced(folder: Path, content: bytes) -> None:
    path = folder / "tuning" / f"{SIGNATURE}.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="ignoring a damaged cache file, .* "):
        assert find_entry("tuning", SIGNATURE, load) is None
    assert keep(0.5) == path
    assert find_entry("tuning", SIGNATURE, load) == 0.5


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match=r"cannot cache tuning in .*; continuing without the cache\. Set AUTOBATCH_CACHE"
    ):
        assert keep() is None
    assert find_entry("tuning", SIGNATURE, load) is None
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.warns(UserWarning, match="no space left"):
        assert keep() is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "file"]


@pytest.mark.parametrize("seed", range(3))
def test_any_bit_that_flips_is_found(folder: Path, seed: int) -> None:
    """Only flips in white space, which change no meaning, may pass."""
    path = keep(0.65625)
    assert path is not None
    written, rng = path.read_bytes(), np.random.default_rng(seed)
    for place in rng.permutation(8 * len(written))[:200].tolist():
        damaged = bytearray(written)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = find_entry("tuning", SIGNATURE, load)
        assert found == 0.65625 if not told else found is None
        assert told or json.loads(damaged) == json.loads(written)
    assert keep(0.5) == path
    assert find_entry("tuning", SIGNATURE, load) == 0.5


WRITER = """
import sys, warnings
from autobatch.system.cache import find_entry, keep_entry
warnings.simplefilter("error")
content = {"number": float(sys.argv[1])} | dict.fromkeys(map(str, range(1000)), sys.argv[1])
for _ in range(25):
    assert keep_entry("tuning", sys.argv[2], content)
    print(find_entry("tuning", sys.argv[2], lambda content: content["number"]))
"""


def test_processes_that_write_and_read_one_entry_see_whole_files(folder: Path) -> None:
    """Four processes write 25 times each and read after each time. A torn file would end one with a warning."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(k), SIGNATURE], stdout=subprocess.PIPE, text=True)
        for k in range(4)
    ]
    seen = [writer.communicate(timeout=100)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0, 0]
    assert [len(numbers) for numbers in seen] == [25, 25, 25, 25]
    assert {float(number) for numbers in seen for number in numbers} <= {0.0, 1.0, 2.0, 3.0}
    assert os.listdir(folder / "tuning") == [f"{SIGNATURE}.json"]


def test_machine_code_is_found_again(folder: Path) -> None:
    assert find_code("kernels", SIGNATURE) is None
    keep_code("kernels", SIGNATURE, b"code")
    assert find_code("kernels", SIGNATURE) == b"code"


@pytest.mark.parametrize("damage", ["a bit", "the end", "all"])
def test_damaged_machine_code_counts_as_absent(damage: str, folder: Path) -> None:
    keep_code("kernels", SIGNATURE, bytes(range(100)))
    (path,) = folder.rglob("*.o")
    content = bytearray(path.read_bytes())
    for at in range(len(content)) if damage == "a bit" else (0,):
        changed = bytearray(content)
        changed[at] ^= 1 << at % 8
        path.write_bytes({"a bit": bytes(changed), "the end": bytes(content[:50]), "all": b""}[damage])
        with pytest.warns(UserWarning, match="ignoring a damaged cache file, .*"):
            assert find_code("kernels", SIGNATURE) is None
    keep_code("kernels", SIGNATURE, b"code")
    assert find_code("kernels", SIGNATURE) == b"code"


@pytest.mark.parametrize("seed", range(3))
def test_machine_code_under_another_name_counts_as_absent(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    codes = {f"{number:016x}": rng.bytes(int(rng.integers(100))) + bytes([number]) for number in range(8)}
    for signature, code in codes.items():
        keep_code("kernels", signature, code)
    written = {signature: (folder / "kernels" / f"{signature}.o").read_bytes() for signature in codes}
    taken = dict(zip(codes, rng.permutation([*codes]).tolist(), strict=True))
    for signature, other in taken.items():
        (folder / "kernels" / f"{signature}.o").write_bytes(written[other])
    for signature, other in taken.items():
        if signature == other:
            assert find_code("kernels", signature) == codes[signature]
            continue
        with pytest.warns(UserWarning, match="ignoring a damaged cache file, .*"):
            assert find_code("kernels", signature) is None
        keep_code("kernels", signature, codes[signature])
        assert find_code("kernels", signature) == codes[signature]


def test_machine_code_that_was_not_used_for_longest_is_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_CODE", 5 * 132)
    for number in range(5):
        keep_code("kernels", str(number), bytes(100))
        os.utime(folder / "kernels" / f"{number}.o", (number, number))
    assert find_code("kernels", "0") == bytes(100)  # was just used
    keep_code("kernels", "5", bytes(100))
    assert sorted(path.stem for path in folder.rglob("*.o")) == ["0", "2", "3", "4", "5"]
    keep_code("kernels", "large", bytes(1000))
    assert not [*folder.rglob("*.o")]
