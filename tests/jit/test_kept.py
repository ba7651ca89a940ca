"""What the caches hold on disk: any file that is not as it was written is made again, and no start fails for it."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from autobatch.blas import choosing
from autobatch.compiler.numba import loading
from autobatch.compiler.numba.inlined import in_kernels
from autobatch.jit.internals import keep, make_callback
from autobatch.system.cache import find_entry, keep_entry
from helpers.runs.ways import each

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "all but three bytes": lambda content: content[:-3],
    "zeros at the end": lambda content: content[: len(content) // 2] + bytes(len(content) - len(content) // 2),
    "zeros alone": lambda content: bytes(len(content)),
    "garbage": lambda content: np.random.default_rng(0).bytes(len(content)),
    "another's": lambda content: b'{"format": "mine", "of": [1, 2, 3]}',
    "deep": lambda content: b"[" * 100_000,
}
FOREIGN = pickle.dumps(((0, 0, 0), None))
MOVED, RENAMED = b"cautobatch.nowhere\nCalls\n.", b"cautobatch.errors\nNoSuchError\n."  # pickles of a class
CODE_DAMAGES = DAMAGES | {
    "a bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "something else, whole": lambda content: sha256(FOREIGN).digest() + FOREIGN,
    "of a class that another version moved": lambda content: sha256(MOVED).digest() + MOVED,
    "of a class that another version renamed": lambda content: sha256(RENAMED).digest() + RENAMED,
}


@pytest.fixture(autouse=True)
def _cached_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")


def import_function(path: Path, source: str) -> Any:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # machine code is loaded for a module
    spec.loader.exec_module(module)
    return vars(module)[path.stem]


@pytest.fixture
def triple(tmp_path: Path) -> Any:
    return import_function(tmp_path / "triple.py", "def triple(x):\n    return 3 * x\n")


def hits_of(loop: Any, *args: Any) -> int:
    """Call a loop; say how many signatures it found in the cache."""
    assert loop(*args) == 3 * args[0]
    return sum(loop.stats.cache_hits.values())


def kept(function: Any) -> Any:
    """A loop whose code is kept."""
    return keep(numba.njit(function))


def callback_hits(function: Any) -> Any:
    """Compile a callback; say whether its code was kept."""
    callback = make_callback(function, is_kept=True)
    callback.compile()
    return callback.cache_hits


def kernel_hits() -> Any:
    """Load a kernel as another process would; say whether its code was kept."""
    kernel = loading._make_kernel.__wrapped__(KERNEL, "float32", "int32")
    kernel.callback.compile()
    return kernel.callback.cache_hits


def only_file(folder: Path, pattern: str) -> Path:
    (path,) = folder.rglob(pattern)
    return path


def test_damaged_machine_code_is_compiled_again(triple: Any, tmp_path: Path) -> None:
    assert hits_of(kept(triple), 2) == 0
    path = only_file(tmp_path, "*.kept")
    for name, damage in CODE_DAMAGES.items():
        assert hits_of(kept(triple), 2) == 1, name
        path.write_bytes(damage(path.read_bytes()))
        assert hits_of(kept(triple), 2) == 0, name
    assert hits_of(kept(triple), 2) == 1


def test_damaged_machine_code_of_a_callback_is_compiled_again(tmp_path: Path) -> None:
    nothing = import_function(tmp_path / "nothing.py", "def nothing(x):\n    pass\n")
    assert callback_hits(nothing) == 0
    path = only_file(tmp_path, "*.kept")
    for name, damage in CODE_DAMAGES.items():
        assert callback_hits(nothing) == 1, name
        path.write_bytes(damage(path.read_bytes()))
        assert callback_hits(nothing) == 0, name
    assert callback_hits(nothing) == 1


def test_each_signature_has_a_file(triple: Any, tmp_path: Path) -> None:
    loop = kept(triple)
    assert [hits_of(loop, 2), hits_of(loop, 2.0)] == [0, 0]
    assert len(list(tmp_path.rglob("*.kept"))) == 2
    again = kept(triple)
    assert [hits_of(again, 2), hits_of(again, 2.0)] == [1, 2]


def test_machine_code_of_another_version_of_the_file_is_replaced(tmp_path: Path) -> None:
    first = import_function(tmp_path / "triple.py", "def triple(x):\n    return 2 * x\n")
    assert in_kernels(first).compiled(2) == 4
    second = import_function(tmp_path / "triple.py", "def triple(x):\n    return 3 * x\n")
    assert hits_of(in_kernels(second).compiled, 2) == 0
    assert hits_of(in_kernels(second).compiled, 2) == 1


def test_machine_code_is_written_whole(triple: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves no part of a file behind."""
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.warns(UserWarning, match=r"cannot keep compiled code in .*\(no space left\); going on"):
        assert kept(triple)(2) == 6
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".kept", ".tmp")]


def test_without_a_folder_loops_are_compiled_all_the_same() -> None:
    names: dict[str, Any] = {}
    exec(compile("def double(x):\n    return 2 * x\n", "<nowhere>", "exec"), names)
    with pytest.warns(UserWarning, match=r"cannot keep compiled code \(.*no locator available.*\); going on"):
        assert kept(names["double"])(2) == 4


TWO_TYPES = """
import sys
import numba
from double import double
from autobatch.jit.internals import keep

loop = keep(numba.njit(double))
assert [loop(x) for x in map(eval, sys.argv[1:])] == [2 * x for x in map(eval, sys.argv[1:])]
print(sum(loop.stats.cache_hits.values()))
"""


@pytest.mark.slow
def test_processes_that_compile_at_once_keep_all(tmp_path: Path) -> None:
    """Numba's own cache may lose what one of them wrote, or take it for the other's."""
    (tmp_path / "double.py").write_text("def double(x):\n    return x + x\n")

    def start(*numbers: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(tmp_path), *sys.path])
        command, environment = [sys.executable, "-c", TWO_TYPES, *numbers], {**os.environ, "PYTHONPATH": path}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    at_once = [start("1", "2.5"), start("2.5", "1")]
    for process in at_once:
        process.communicate()
    assert [process.returncode for process in at_once] == [0, 0]
    assert start("1", "2.5").communicate()[0] == "2\n"


KERNEL = "def kernel(a, b, c):\n    pass\n"


@pytest.mark.parametrize("pattern", ["*.py", "*.kept"])
def test_damaged_kernels_are_made_again(tmp_path: Path, pattern: str) -> None:
    assert kernel_hits() == 0
    for name, damage in CODE_DAMAGES.items():
        assert kernel_hits() == 1, name
        path = only_file(tmp_path / "cache" / "kernels", pattern)
        written = path.read_bytes()
        path.write_bytes(damage(written))
        kernel_hits()
        assert kernel_hits() == 1, name
        if pattern == "*.py":
            assert path.read_bytes() == written, name
    assert not list(tmp_path.rglob("*.pyc"))


# --- what is learned and measured ---


def keep_table() -> None:
    keep_entry("matmul", "signature", choosing._described({"float32 4 4 4 NN": {"numpy": 1.0}}))


ENTRIES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "matmul": (keep_table, lambda: find_entry("matmul", "signature", choosing._parse)),
}


@pytest.mark.parametrize("name", ENTRIES)
@each("damage", DAMAGES)
def test_damaged_entries_are_told_and_replaced(tmp_path: Path, name: str, damage: str) -> None:
    keep_one, find_one = ENTRIES[name]
    keep_one()
    path = only_file(tmp_path / "cache", "*.json")
    written = path.read_bytes()
    path.write_bytes(DAMAGES[damage](written))
    with pytest.warns(UserWarning, match="left aside and will be replaced"):
        assert not find_one()
    path.unlink()
    keep_one()
    assert path.read_bytes() == written
    assert find_one()
    path.unlink()
