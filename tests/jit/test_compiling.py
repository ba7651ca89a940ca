"""Observers are called with what is being compiled; commands that take long show it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

import autobatch as ab
from autobatch.cli import progress
from autobatch.cli.progress import show_compilation, show_progress
from autobatch.jit import progress as notices
from autobatch.jit.compiling import Compilation, compiling, watch_compilation
from autobatch.jit.internals import keep, make_callback


def square(x: int) -> int:
    return x * x


@pytest.fixture
def compile_something() -> Callable[[], int]:
    """A loop that no cache holds, and that calls another one."""
    inner = numba.njit(square)
    names: dict[str, Any] = {"inner": inner, "serial": id(inner)}
    exec("def outer(x):\n    return inner(x) + serial", names)
    return lambda: numba.njit(names["outer"])(3) - id(inner)


def watch(work: Callable[[], object]) -> dict[str, list[Compilation]]:
    told: dict[str, list[Compilation]] = {"begun": [], "done": [], "loaded": []}
    with watch_compilation(*(told[name].append for name in told)):
        work()
    return told


def test_a_loop_is_told_once_and_with_all_that_it_calls(compile_something: Callable[[], int]) -> None:
    told = watch(compile_something)
    assert [one.what for one in told["begun"]] == [one.what for one in told["done"]] == ["loop 'outer'"]
    assert told["begun"][0].seconds == 0 < told["done"][0].seconds
    assert not told["done"][0].is_kernel
    assert watch(lambda: square(3)) == {"begun": [], "done": [], "loaded": []}


def test_a_block_names_what_is_compiled_in_it(compile_something: Callable[[], int]) -> None:
    def work() -> None:
        with compiling("cell 'x' (forward)"):
            compile_something()
        with compiling("cell 'y' (forward)"):
            pass

    told = watch(work)
    assert [(one.what, one.is_kernel) for one in told["begun"]] == [("cell 'x' (forward)", True)]
    assert [one.what for one in told["done"]] == ["cell 'x' (forward)"]
    assert [one.what for one in told["loaded"]] == ["cell 'y' (forward)"]


def test_nobody_is_told_after_an_error_or_after_the_end(compile_something: Callable[[], int]) -> None:
    told: list[Compilation] = []
    with pytest.raises(ZeroDivisionError), watch_compilation(told.append), compiling("cell 'x' (forward)"):
        raise ZeroDivisionError
    compile_something()
    assert told == []


def test_kernels_are_named_by_their_cells() -> None:
    class Model(ab.Module):
        def __init__(self) -> None:
            self.weight = ab.Parameter(np.ones((3, 3)))

        @ab.cell
        def inner(self, x: Any) -> Any:
            return ab.tanh(self.weight @ x)

    model = Model()
    loss = ab.batched(lambda x: ab.sum(model.inner(model.inner(x))), module=model, backend="cpu")
    told = watch(lambda: loss.value_and_grad([np.ones(3)]))
    kernels = dict.fromkeys(one.what for one in [*told["done"], *told["loaded"]] if one.is_kernel)
    assert {"cell 'inner' (forward)", "cell 'inner' (backward)"} <= set(kernels)
    assert watch(lambda: loss.value_and_grad([np.ones(3)]))["done"] == []


# --- what programs and commands show ---


def test_a_program_is_told_once_that_compiling_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_for(seconds: float, *, is_kernel: bool = True) -> None:
        one = Compilation(f"cell 'took {seconds}'", is_kernel)
        notice.begun(one)
        if notice.timer is not None and notice.timer.interval <= seconds:
            notice.timer.join()
        notice.done(one._replace(seconds=seconds))

    line = "autobatch: compiling cell 'took 2.0' and what else is new, which later runs find in the cache.\n"
    monkeypatch.setattr(notices, "SECONDS_UNTOLD", 0.2)
    monkeypatch.setenv("AUTOBATCH_CACHE", "a-folder")
    notice = notices.Notice()
    compile_for(5.0, is_kernel=False)
    assert notice.timer is None
    notice = notices.Notice()
    compile_for(0.1)
    assert capsys.readouterr() == ("", "")
    compile_for(2.0)
    compile_for(3.0)
    assert capsys.readouterr() == ("", line)
    monkeypatch.setattr(notices, "SECONDS_APART", -1.0)
    compile_for(2.0)
    assert capsys.readouterr() == ("", line)
    notice.is_quiet = True
    compile_for(2.0)
    assert capsys.readouterr() == ("", "")


def test_what_is_compiled_reaches_the_notice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compile_something: Callable[[], int]
) -> None:
    monkeypatch.setattr(notices, "SECONDS_UNTOLD", 0.0)
    monkeypatch.setattr(notices, "SECONDS_APART", -1.0)
    with show_compilation(), compiling("cell 'x' (forward)"):
        compile_something()
    assert capsys.readouterr().err == ""
    with compiling("cell 'y' (forward)"):
        compile_something()
    assert capsys.readouterr().err.startswith("autobatch: compiling cell 'y' (forward)")


def test_elsewhere_a_line_comes_after_some_seconds_of_compiling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 10.0)
    monkeypatch.setattr(progress, "SECONDS_UNTOLD", 2.0)
    for cache, told in (("a-folder", ", which later runs find in the cache"), ("off", "")):
        monkeypatch.setenv("AUTOBATCH_CACHE", cache)
        display = progress._Compilations()
        for seconds in (1.5, 1.5, 4.0, 7.0, 1.0):
            one = Compilation(f"loop 'took {seconds}'", False)
            display.begun(one)
            display.done(one._replace(seconds=seconds))
        assert capsys.readouterr().out.splitlines() == [f"  compiling loop 'took {s}'{told}" for s in (4.0, 1.0)]


@pytest.mark.parametrize("with_bar", [False, True])
def test_on_a_terminal_all_is_named_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], with_bar: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    noted: list[str] = []
    monkeypatch.setattr(progress._Bar, "note", lambda self, what: noted.append(what))
    with show_compilation(), compiling("cell 'x' (forward)"):
        if with_bar:
            with show_progress(2):
                numba.njit(lambda x: x + 1)(2)
        else:
            numba.njit(lambda x: x + 1)(2)
    assert noted == ["compiling cell 'x' (forward)"] * with_bar
    assert ("compiling cell 'x' (forward)" in capsys.readouterr().out) == (not with_bar)


def test_a_full_disk_costs_the_cache_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba writes machine code when it is made: loops run all the same, and say once what is lost."""

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("autobatch.jit.internals.write_whole", fail)

    def cube(x: int) -> int:
        return x * x * x

    def do_nothing(x: int) -> None:
        pass

    loop = keep(numba.njit(cube))
    with pytest.warns(UserWarning, match="cannot keep compiled code .*No space left on device"):
        assert loop(3) == 27
    assert loop(4) == 64
    callback = make_callback(do_nothing, is_kept=True)
    with pytest.warns(UserWarning, match="going on without"):
        callback.compile()
    assert callback.address


WATCHED_LATE = """
import numba
from numba.extending import overload
from autobatch.jit.compiling import start_watching

def double(x):
    return 2 * x

@overload(double)
def _(x):
    start_watching(lambda compilation: None)
    return lambda x: 2 * x

print(numba.njit(lambda x: double(x))(3))
"""


def test_what_is_compiled_already_when_the_watch_begins_is_no_error() -> None:
    done = subprocess.run([sys.executable, "-c", WATCHED_LATE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("6\n", 0), done.stderr
