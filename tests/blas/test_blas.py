"""Test the matrix products of all available libraries against NumPy in float64, their choice, and their threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import autobatch as ab
from autobatch._native import repeat_product
from autobatch.blas import (
    Chooser,
    Provider,
    choosing,
    describe_product,
    finding,
    get_provider,
    limit_threads,
    list_absent,
    list_providers,
    measure,
    most_threads,
    threads,
    threads_in_force,
)
from autobatch.blas.finding import FINDERS
from autobatch.blas.packed import NAME as PACKED
from autobatch.blas.provider import ONE_PAIR
from autobatch.cli import doctor
from autobatch.cli.main import commands
from autobatch.errors import BackendError, ShapeError
from autobatch.system import processor
from autobatch.system.processor import usable_cores
from helpers.runs.interrupts import interrupts
from helpers.runs.ways import each

SIZES = [(1, 1, 1), (1, 7, 5), (7, 1, 5), (5, 6, 1), (33, 20, 65), (4, 3, 0), (0, 3, 2), (9, 530, 300)]
DTYPES = ("float32", "float64")


@pytest.fixture(params=FINDERS)
def provider(request: pytest.FixtureRequest) -> Provider:
    """Return each library in turn; skip missing ones with the reason."""
    if request.param == "torch":
        pytest.importorskip("torch")
    try:
        return get_provider(request.param)
    except BackendError as absent:
        pytest.skip(str(absent))


def draw(rng: np.random.Generator, n_rows: int, n_columns: int, dtype: str, is_flipped: bool) -> Any:
    """Draw a view of rows or columns in the interior of a larger array."""
    if is_flipped:
        return draw(rng, n_columns, n_rows, dtype, False).T
    return rng.standard_normal((n_rows + 2, n_columns + 5)).astype(dtype)[1 : 1 + n_rows, 2 : 2 + n_columns]


@each("size", SIZES)
def test_products_of_views_are_exact_and_stay_in_their_place(provider: Provider, size: tuple[int, int, int]) -> None:
    """All eight layouts of three matrices, overwriting and adding."""
    rng = np.random.default_rng(0)
    m, n, k = size
    dtypes = ["float32"] if provider.name == PACKED else DTYPES  # what our own product supports
    for dtype, (*flips, accumulate) in product(dtypes, product((False, True), repeat=4)):
        a, b = draw(rng, m, k, dtype, flips[0]), draw(rng, k, n, dtype, flips[1])
        out = draw(rng, m, n, dtype, flips[2])
        around = out.base if out.base is not None else out
        before, start = around.copy(), out.copy()
        expected = a.astype(float) @ b.astype(float) + (start if accumulate else 0.0)
        if not accumulate:
            out[...] = np.nan
        provider.multiply(a, b, out, accumulate)
        rtol = float(4 * (k + 2) * np.finfo(dtype).eps)
        np.testing.assert_allclose(out, expected, rtol=rtol, atol=rtol)
        out[...] = start
        np.testing.assert_array_equal(around, before)


def test_an_axis_of_length_one_may_be_turned_round(provider: Provider) -> None:
    a, b = np.full((1, 3), 2.0, np.float32)[::-1], np.ones((3, 1), np.float32)[:, ::-1]
    out = np.zeros((1, 1), np.float32)[::-1, ::-1]
    provider.multiply(a, b, out)
    assert out == 6.0


def test_products_called_by_address_are_those_of_python(provider: Provider) -> None:
    if not provider.addresses:
        pytest.skip("products of this provider have no address")
    rng = np.random.default_rng(1)
    for dtype, flips in product(provider.addresses, product((False, True), repeat=3)):
        a, b = draw(rng, 9, 14, dtype, flips[0]), draw(rng, 14, 6, dtype, flips[1])
        out = draw(rng, 9, 6, dtype, flips[2])
        start = out.astype(float)
        described, size = tuple(describe_product(a, b, out)), out.itemsize
        repeat_product(3, size, provider.addresses[dtype], described, 1.0, ONE_PAIR)
        np.testing.assert_allclose(out, start + 3 * (a.astype(float) @ b.astype(float)), rtol=1e-4, atol=1e-5)


def test_no_operand_is_copied(provider: Provider) -> None:
    """A matrix takes 4 MB, and the Python-visible allocations of a product are at most 1% of it."""
    a, b, out = (np.ones((1200, 2048), np.float32)[:1024, :1024] for _ in range(3))
    views = [(a, b, out), (a.T, b, out), (a, b.T, out), (a, b, out.T)]
    provider.multiply(a, b, out)
    tracemalloc.start()
    for left, right, target in views:
        provider.multiply(left, right, target)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000


def test_torch_does_not_warn_of_operands_that_are_read_only() -> None:
    program = """
import numpy as np, torch
from autobatch.blas.finding import get_provider
a, out = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)
a.flags.writeable = False
get_provider("torch").multiply(a, a, out)
print(out.sum())
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "8.0\n", "")


def test_matrices_that_do_not_fit_are_refused(provider: Provider) -> None:
    x = np.zeros((4, 6), np.float32)
    for a, b, out, why in [
        (x, x, np.zeros((4, 6), np.float32), r"got \(4, 6\), \(4, 6\) and \(4, 6\)"),
        (x, x.T, np.zeros((4, 5), np.float32), r"got \(4, 6\), \(6, 4\) and \(4, 5\)"),
        (x, x.T.astype(float), np.zeros((4, 4), np.float32), "got float32, float64 and float32"),
        (x, x.T, np.zeros((4, 4), float), "must all be float32 or all float64, got float32, float32 and float64"),
        (x.astype(np.int32), x.T.astype(np.int32), np.zeros((4, 4), np.int32), "got int32, int32 and int32"),
        (x[:, ::2], x.T[::2], np.zeros((4, 4), np.float32), r"axis of a must be contiguous.* strides \(24, 8\)"),
        (np.broadcast_to(x[:1], (4, 6)), x.T, np.zeros((4, 4), np.float32), r"must cover it.* strides \(0, 4\)"),
        (x[::-1], x.T, np.zeros((4, 4), np.float32), r"axis of a must be contiguous.* strides \(-24, 4\)"),
    ]:
        with pytest.raises(ShapeError, match=why):
            provider.multiply(a, b, out)
    if provider.name == PACKED:
        with pytest.raises(ShapeError, match=r"packed does not multiply matrices of float64"):
            provider.multiply(x.astype(float), x.T.astype(float), np.zeros((4, 4)))


def test_a_provider_that_is_unknown_or_absent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match=r"one of numpy, mkl, torch.*, got 'blas'"):
        get_provider("blas")

    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(finding, "_find", lambda name: FINDERS[name]())
    monkeypatch.setattr(finding, "version", nothing)
    monkeypatch.setattr(finding, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name, why in [
        ("mkl", r"'mkl' is not available: the package mkl is not installed; pip install 'autobatch-nn\[mkl\]'\."),
        ("scipy", r"'scipy' is not available: scipy is not installed; pip install 'autobatch-nn\[search\]'\."),
        ("torch", r"'torch' is not available: torch is not loaded in this process; import torch first\."),
    ]:
        with pytest.raises(BackendError, match=why):
            get_provider(name)
        with pytest.raises(BackendError, match=why):
            Chooser(name)
    monkeypatch.setattr(finding, "has_avx512", lambda: False)
    assert [one.name for one in list_providers()] == ["numpy"]
    assert sorted(list_absent()) == ["mkl", "packed", "scipy", "torch"]


def test_without_an_openblas_numpy_multiplies_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "_pool_of_numpy", lambda: None)
    numpy = FINDERS["numpy"]()
    assert numpy.addresses == {}
    out = np.ones((2, 2))
    numpy.multiply(np.eye(2), np.eye(2), out, accumulate=True)
    assert out.tolist() == [[2.0, 1.0], [1.0, 2.0]]


def test_threads_are_limited_inside_blocks_and_set_back(provider: Provider) -> None:
    """The smallest limit of nested blocks applies, and never more than the number of cores."""
    before = threads_in_force()
    with limit_threads(10**6) as n_outer:
        assert n_outer == min(usable_cores(), max(before.values())) == most_threads()
        with limit_threads(1) as n_inner:
            assert n_inner == 1
            assert set(threads_in_force().values()) == {1}
        assert set(threads_in_force().values()) == {n_outer}
    assert threads_in_force() == before
    assert len(before) >= 1
    with pytest.raises(BackendError, match="must be at least 1, got 0"), limit_threads(0):
        pass


def test_an_interrupt_ends_a_block_that_is_about_to_begin() -> None:
    before, found = threads_in_force(), list[BaseException]()

    def enter() -> None:
        with limit_threads(1):
            pass

    for function in (threads.Limit.__enter__, threads._put_in_force):
        for error in interrupts(function, enter):
            found += [] if error is None else [error]
            assert threads._asked == []
            assert threads_in_force() == before
    with ThreadPoolExecutor(1) as other:
        assert other.submit(threads._lock.acquire, timeout=5.0).result(), "the lock must be free"
        other.submit(threads._lock.release).result()
    assert len(found) > 2
    assert {*map(type, found)} == {KeyboardInterrupt}


def test_what_others_allow_is_never_exceeded() -> None:
    """Limits from outside, such as the environment, hold within a block, and those of a block in nested ones."""
    before = threads_in_force()
    pools = threads._all_pools()
    try:
        for pool in pools:
            pool.set(1)
        with limit_threads(4) as n_threads:
            assert (n_threads, most_threads()) == (1, 1)
    finally:
        for pool in pools:
            pool.set(before[pool.name])
    with limit_threads(1):
        assert most_threads() == 1
    assert threads_in_force() == before


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000", "cpu.max": "800000 100000"}, 1.5),
        ("0::/elsewhere\n", {"cpu.max": "50000 100000"}, 0.5),
        ("3:cpu,cpuacct:/a\n0::/\n", {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, 3.0),
        ("3:cpu:/\n2:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, np.inf),
        ("", {"cpu.max": "50000 100000"}, np.inf),
    ],
)
def test_the_quota_of_a_container_counts(
    groups: str, files: dict[str, str], expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(processor, "CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(processor, "OWN_CGROUPS", tmp_path / "own")
    assert processor.quota_of_cores.__wrapped__() == expected
    monkeypatch.setattr(processor, "quota_of_cores", lambda: expected)
    assert 1 <= usable_cores() <= max(1, np.ceil(expected))


def test_python_threads_share_the_cores() -> None:
    """Four threads that each ask for all cores get a quarter each, but at least one."""
    granted, arrived = [], threading.Barrier(4)

    def work() -> None:
        with limit_threads(usable_cores()):
            arrived.wait(timeout=60)
            with limit_threads(usable_cores()) as n_threads:
                granted.append(n_threads)
                arrived.wait(timeout=60)

    before = threads_in_force()
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert granted == [max(1, min(usable_cores(), max(before.values())) // 4)] * 4
    assert threads_in_force() == before


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache folder."""
    monkeypatch.setenv("AUTOBATCH_CACHE", str(tmp_path))
    return tmp_path / "matmul"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return the sizes measured so far, by a fake `measure` in which scipy is fastest, then numpy."""
    asked: list[tuple[Any, ...]] = []

    def pretend(providers: list[Provider], *size: Any) -> dict[str, float]:
        asked.append(size)
        return {one.name: {"scipy": 3.0, "numpy": 2.0}.get(one.name, 1.0) for one in providers}

    monkeypatch.setattr(choosing, "measure", pretend)
    return asked


@each(
    "speeds, n_operations, expected",
    [
        ({"numpy": 100.0, "packed": 91.0}, 10**9, "packed"),  # saving 10% of the time is not worth the overhead
        ({"numpy": 100.0, "packed": 50.0}, 9_999, "packed"),  # nor is saving less than 100 ns
        ({"numpy": 100.0, "packed": 50.0}, 10_001, "numpy"),
        ({"numpy": 100.0, "packed": 120.0}, 10**9, "packed"),
        ({"numpy": 100.0, "scipy": 110.0}, 1, "scipy"),  # a CPU without AVX-512
    ],
)
def test_a_library_is_chosen_if_it_saves_more_than_it_costs(
    speeds: dict[str, float], n_operations: int, expected: str
) -> None:
    assert choosing.prefer_own(speeds, n_operations) == expected


def test_the_fastest_is_measured_once_per_size_and_kept(folder: Path, measured: list[tuple[Any, ...]]) -> None:
    fastest = "scipy" if "scipy" not in list_absent() else "numpy"
    chooser = Chooser()
    for _ in range(3):
        assert chooser.choose(60, 1280, 500).name == fastest
        assert chooser.choose(5, 60, 70, "float64", b_flipped=True).name == fastest
    assert measured == [(64, 1024, 512, "float32", False, False), (4, 64, 64, "float64", False, True)]
    assert Chooser().choose(70, 1000, 512).name == fastest
    assert len(measured) == 2
    (path,) = folder.iterdir()
    kept = json.loads(path.read_bytes())
    assert list(kept["gflops"]) == ["float32 64 1024 512 NN", "float64 4 64 64 NT"]
    assert kept["versions"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'{"gflops": 1}', b'{"gflops": {"a": {}}}', b'{"gflops": {"a": 1}}']
)
def test_a_damaged_table_is_told_and_replaced(folder: Path, measured: list[tuple[Any, ...]], content: bytes) -> None:
    Chooser().choose(64, 64, 64)
    (path,) = folder.iterdir()
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="ignoring a damaged cache file"):
        Chooser().choose(64, 64, 64)
    assert len(measured) == 2
    Chooser().choose(64, 64, 64)
    assert len(measured) == 2


def test_the_choice_is_for_the_one_thread_that_runs_use_in_any_block(
    folder: Path, measured: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run limits products to one thread itself, whatever the block around it allows."""
    monkeypatch.setattr(threads, "_all_pools", lambda: [])  # so that blocks get all cores, however many there are
    monkeypatch.setattr(threads, "_pools", None)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    linear = ab.Linear(40, 24, rng=np.random.default_rng(0))
    run = ab.batched(lambda x: linear(x), module=linear, backend="cpu")
    with limit_threads(3) as n_threads:
        assert n_threads == 3
        run(list(np.eye(32, 40, dtype=np.float32)))
    assert measured == [(32, 32, 32, "float32", False, False)]
    (path,) = folder.iterdir()
    assert [*json.loads(path.read_bytes())["gflops"]] == ["float32 32 32 32 NN"]


def test_numpy_is_used_where_nothing_is_kept_and_one_that_is_named_always(measured: list[tuple[Any, ...]]) -> None:
    assert Chooser().choose(64, 64, 64).name == "numpy"
    for provider in list_providers():
        assert Chooser(provider.name).choose(3, 4, 5) is provider
    assert measured == []


def test_speeds_are_measured_of_all_that_multiply_the_dtype() -> None:
    providers = list_providers()
    names = [one.name for one in providers]
    assert sorted(measure(providers, 8, 16, 16)) == sorted(names)
    speeds = measure(providers, 8, 16, 16, "float64", a_flipped=True, b_flipped=True)
    assert sorted(speeds) == sorted({*names} - {PACKED})
    assert min(speeds.values()) > 0


def test_the_doctor_tells_every_library_and_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROWS", (4,))
    told = CliRunner().invoke(commands, ["doctor", "--matmul"])
    assert told.exit_code == 0, told.output
    lines = [line.split() for line in told.output.splitlines()]
    for one in list_providers():
        for kind in ("float32", "float64")[: 1 if one.name == PACKED else 2]:
            (line,) = (line for line in lines if line[:1] == [one.name] and kind in line)
            assert float(line[-1]) > 0
    for name, why in list_absent().items():
        said = "it is used only in programs that import torch" if name == "torch" else why
        assert f"Not available: {name} ({said})." in told.output
    assert "Chosen for 4 rows: numpy." in told.output
    assert ("OPENBLAS_CORETYPE=SkylakeX" in told.output) == (finding.faster_routines() is not None)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_fork_leaves_the_blocks_of_other_threads() -> None:
    """The child keeps the block of the thread that forked, and has neither the other's limit nor the lock it held."""
    before, is_open, may_close = threads_in_force(), threading.Event(), threading.Event()

    def hold() -> None:
        with limit_threads(1), threads._lock:
            is_open.set()
            may_close.wait()

    other = threading.Thread(target=hold)
    with limit_threads(usable_cores()) as n_before:
        other.start()
        is_open.wait()
        child = os.fork()
        if child == 0:
            n_inside = threads._number
            with limit_threads(usable_cores()) as n_own:
                os._exit(0 if n_inside == n_own == n_before else 1)
        may_close.set()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other.join()
    assert threads_in_force() == before
