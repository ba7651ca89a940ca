"""Test the tapes of the native recorder: the derivative calls that they log are those of the definition."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from autobatch._native import Handle, Layout, Log, Rule, Stage, Tape
from autobatch.trace.forms import EACH, END, VALUE, WORDS
from helpers.runs.entries import sizes
from helpers.runs.recordings import value_class

STAGE = Stage()
VALUES = value_class()
SHAPE = (2,)
SOURCE, PAIR, LISTED, SUM, ZEROS = range(5)  # numbers of forms
CODES = [(0,), (1, VALUE, 1, 0, VALUE, 1, 1), (2, EACH, 1, 1, 0, WORDS, 1), (3, EACH, 1, 1, 0), (4,)]
LAYOUTS = [
    [0, 0, 1, 0, 0, -1, 0, 0],
    [2, VALUE, -1, 0, 1, 1, 10, VALUE, -1, 0, 1, 1, 11, 0, 1, 0, 0, -1, 0, 2, 10, -1, 0, 11, -1, 0],
    [2, EACH, 0, 0, 1, 1, 10, WORDS, -1, 1, 0, 1, WORDS, -1, 1, 2, 0, 0, -1, 0, 1, 1, 0, 0, 1, 10, 0, 0],
]
FLOATS = [0, 0, 1]


class Recorder:
    """The owner of a log with cells for a pair of values, and for a list of values with an int and a float.

    The derivative of a call logs everything that the call logged, followed by its own arguments.
    """

    def __init__(self) -> None:
        self.rules: dict[bytes, Rule] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.log = Log(self)
        for code in CODES:
            self.log.add_form((*code, END))

    def layout(self, form: int) -> Layout:
        lengths: Any = lambda group, lengths: lengths[0]  # noqa: E731
        return Layout(form, 1 if form == LISTED else 0, [*LAYOUTS[form]], (SHAPE,), (), lengths)

    def make_rule(
        self, layout: Layout, kind: int, outputs: Any, leaves: Any, own: Any, given: Any, lengths: Any
    ) -> Rule:  # fmt: skip
        self.asked.append((layout.form, kind, outputs, leaves, given, lengths))
        n_items, each = 2, (EACH, 1, 1, 0)
        form = self.log.add_form((5, *CODES[layout.form][1:], *each * len(given), END))
        results = [(0, leaf) for leaf in leaves] if kind == 0 else [(2, output) for output in outputs]
        groups = [0 if layout.form == LISTED and (kind == 0 or name == 1) else -1 for _, name in results]
        floats = [1, 0, -1] if layout.form == LISTED else [0]
        code = [n_items, 0, -1, 1, -1, *floats, 0, len(given), *range(len(given)), len(results)]
        for (of, name), group in zip(results, groups, strict=True):
            code += [of, name, -1, group]
        return Rule(layout, form, len(given), code, False, lambda lengths: True, lambda group, lengths: lengths[group])

    def sum_form(self, shape: tuple[int, ...]) -> int:
        assert shape == SHAPE
        return SUM

    def zeros(self, shape: tuple[int, ...]) -> Handle:
        made: Handle = self.log.value(VALUES, self.log.add(ZEROS, (), ()), False)
        return made

    def logged(self, begin: int) -> list[int]:
        return self.log.ints(begin, len(self.log))


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    before = STAGE.current
    STAGE.current = found = Recorder()
    found.log.begin(False)
    yield found
    STAGE.current = before


def sources(recorder: Recorder, n: int) -> list[int]:
    """Log n values that are on no tape; return their refs."""
    return [recorder.log.add(SOURCE, (), ()) for _ in range(n)]


def test_gradients_add_up(recorder: Recorder) -> None:
    log = recorder.log
    x, y, seed = sources(recorder, 3)
    tape = Tape(log)
    a = log.add(PAIR, (x, y), ())
    b = log.add(PAIR, (a, a), ())
    tape.close()
    begin = len(log)
    found = tape.gradients([b], [seed], [x], ())
    first, last = b + 256, b + 512
    # The gradient of b has two results, both by a. As outputs of one call, they are summed before another call reads
    # them.
    total = last
    assert recorder.logged(begin) == [first, a, a, 1, seed, total, 2, first, first + 1, total + 256, x, y, 1, total]
    assert found.total(x, SHAPE) == total + 256
    assert found.total(y, SHAPE) is None
    assert [asked[:5] for asked in recorder.asked] == [
        (PAIR, 0, [0], [10, 11], [(SHAPE, -1)]), (PAIR, 0, [0], [10], [(SHAPE, -1)])
    ]  # fmt: skip
    assert len(recorder.rules) == 2


def test_a_rule_is_made_once(recorder: Recorder) -> None:
    log = recorder.log
    for _ in range(3):
        log.begin(False)
        x, seed = sources(recorder, 2)
        tape = Tape(log)
        a = log.add(PAIR, (x, x), ())
        tape.close()
        assert tape.gradients([a], [seed], [x], ()).total(x, SHAPE) is not None
    assert len(recorder.asked) == 1


def test_rows_have_gradients_of_their_own(recorder: Recorder) -> None:
    log = recorder.log
    x, y, seed = sources(recorder, 3)
    tape = Tape(log)
    a = log.add(LISTED, (3, x, y, x, 7), (0.5,))
    tape.close()
    begin, row = len(log), 1 << 40
    found = tape.gradients([a + 1 + row], [seed], [x], ())
    zeros = log.ints(begin, begin + 2)
    given = [3, zeros[0], seed, zeros[1]]
    made = zeros[1] + 256
    assert recorder.logged(begin) == [*zeros, made, 3, x, y, x, 7, *given]
    assert log.floats(1, 2).tolist() == [0.5]
    assert recorder.asked == [(LISTED, 0, [1], [10], [(SHAPE, 3)], [3])]
    assert found.total(y, SHAPE) == made + row
    begin = len(log)
    assert found.total(x, SHAPE) == made + 256
    assert recorder.logged(begin) == [made + 256, 2, made, made + 2 * row]


def test_tangents_go_forward(recorder: Recorder) -> None:
    log = recorder.log
    x, y, along = sources(recorder, 3)
    tape = Tape(log)
    a = log.add(PAIR, (x, y), ())
    b = log.add(PAIR, (a, y), ())
    log.add(PAIR, (y, y), ())
    tape.close()
    begin = len(log)
    found = tape.tangents([x], [along], (), ())
    first = b + 512
    assert recorder.logged(begin) == [first, x, y, 1, along, first + 256, a, y, 1, first]
    assert found.total(b, SHAPE) == first + 256


def test_a_tape_keeps_what_its_log_forgets(recorder: Recorder) -> None:
    log = recorder.log
    x, seed = sources(recorder, 2)
    tape = Tape(log)
    a = log.add(PAIR, (x, x), ())
    tape.save()
    log.clear()
    b = log.add(PAIR, (a, x), ())
    tape.close()
    assert tape.calls == [(PAIR, a >> 8), (PAIR, b >> 8)]
    assert [tape.refs_of(k) for k in range(2)] == [{10: [x], 11: [x]}, {10: [a], 11: [x]}]
    assert tape.gradients([b], [seed], [x], ()).total(x, SHAPE) is not None


def test_tapes_are_used_in_order(recorder: Recorder) -> None:
    tape = Tape(recorder.log)
    with pytest.raises(RuntimeError, match="a tape must be closed before it is read"):
        tape.gradients([], [], [], ())
    tape.close()
    for use in (tape.close, tape.save):
        with pytest.raises(RuntimeError, match="a tape is closed already"):
            use()
    assert not tape.is_stale
    recorder.log.begin(False)
    assert tape.is_stale
    with pytest.raises(RuntimeError, match="a tape must be of the present recording"):
        tape.tangents([], [], (), ())
    with pytest.raises(ValueError, match="a tape must begin within the log"):
        Tape(recorder.log, (1, 0))


def test_walks_keep_nothing(recorder: Recorder) -> None:
    log = recorder.log

    def walk(n: int) -> None:
        for _ in range(n):
            log.begin(False)
            x, y, seed = sources(recorder, 3)
            tape = Tape(log)
            a = log.add(PAIR, (x, y), ())
            b = log.add(LISTED, (2, a, x, 7), (0.5,))
            tape.close()
            assert tape.gradients([b, b + 1], [seed, seed], [x, y], (recorder,)).total(x, SHAPE) is not None
            tape.tangents([x], [seed], (recorder,), (seed,)).of_parameter(recorder, SHAPE)
            tape.refs_of(1)

    walk(500)
    gc.collect()
    memory, things = sizes(), (recorder, log, SHAPE, VALUES, None)
    counts, size = [sys.getrefcount(x) for x in things], next(memory)
    walk(5000)
    gc.collect()
    assert all(abs(sys.getrefcount(x) - n) < 100 for x, n in zip(things, counts, strict=True))
    assert next(memory) - size < 2 << 20
