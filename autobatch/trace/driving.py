"""The driver of async programs: runs one until all its branches wait for values, or it has ended.

The native core (`native/record/programs.cpp`) resumes a program as long as only its root branch runs. All else is done
here: branches, ends and errors, and programs whose library switches a mode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import CoroutineType
from typing import Any

from autobatch._native import AsyncProgram, Log
from autobatch.ops.randomness import DrawCount
from autobatch.trace.awaiting import Asked, Gathered, refusal

MOST_CLOSES = 8  # attempts to close a coroutine, whose `finally` blocks may await something each time


class Branch:
    """A part of a program that can wait independently.

    Attributes:
        program: the coroutine, or another awaitable.
        steps: the iterator that runs it.
        draws: numbers its draws.
        next_draw: returns the number of the next draw.
        join, place: the destination of its result; `join` is None for the whole program.
        below: the branches that it has gathered, while it waits for them.
        mode: the mode of the library in which it resumes; None for the mode around the program.
    """

    __slots__ = ("below", "draws", "is_over", "join", "mode", "next_draw", "place", "program", "steps")

    def __init__(self, program: Awaitable[Any], draws: DrawCount, join: Join | None = None, place: int = 0) -> None:
        self.program, self.draws, self.join, self.place = program, draws, join, place
        self.next_draw = draws.__next__
        self.steps: Any = program if type(program) is CoroutineType else program.__await__()
        self.below: list[Branch] = []
        self.mode: Any = None if join is None else join.waiting.mode
        self.is_over = False

    def end(self, error: BaseException, caught: type[BaseException]) -> None:
        """End the branch, after the branches that it waits for.

        Args:
            error: the reason.
            caught: class of the errors of `finally` blocks that are added to `error` as notes; others propagate.
        """
        branches = [self]
        # The list grows during the loop, branches before those below them; closing in reverse starts with the deepest.
        for branch in branches:
            branches += branch.below
        for branch in reversed(branches):
            if not branch.is_over:
                branch.is_over = True
                _close(branch.steps, error, caught)


class Join:
    """A group of gathered branches: the branch that waits for them, and the results so far."""

    __slots__ = ("n_left", "results", "waiting")

    def __init__(self, waiting: Branch, n: int) -> None:
        self.waiting, self.n_left = waiting, n
        self.results: list[Any] = [None] * n


class Program(AsyncProgram):
    """The async program of one instance.

    Args:
        program: the coroutine.
        switch_mode: sets a mode of the library whose functions are recorded, such as torch's grad mode (None leaves it
            unchanged), and returns the previous mode. Each branch resumes in the mode in which it waited.
        caught: class of errors that end only this program; others propagate.

    Attributes:
        is_over: whether the program has ended, with `result` or with `error`.
    """

    __slots__ = ("_caught", "_ready", "_root", "_switch_mode", "_waiting", "error", "result")

    def __init__(
        self, program: Awaitable[Any], switch_mode: Callable[[Any], Any] | None = None,
        caught: type[BaseException] = Exception,
    ) -> None:  # fmt: skip
        self._switch_mode, self._caught = switch_mode, caught
        self._root = Branch(program, DrawCount())
        self._ready = deque[tuple[Branch, Any, BaseException | None]]()
        self._waiting: list[tuple[Branch, Asked]] = []  # while Python advances the program
        self.result: Any = None
        self.error: BaseException | None = None
        self.draw = self._root.next_draw
        self._resume(self._root, None)

    @property
    def waiting(self) -> list[tuple[Branch, Asked]]:
        """Return the branches that wait for values, each with its request."""
        return self._waiting if self.asked is None else [(self._root, self.asked)]

    def answer(self, answers: Sequence[Any]) -> None:
        """Give the waiting branches the requested numbers, in order."""
        waiting, self._waiting, self.asked = self.waiting, [], None
        if len(waiting) == 1:
            self._resume(waiting[0][0], answers[0])
        else:
            self._ready += [(branch, answer, None) for (branch, _), answer in zip(waiting, answers, strict=True)]

    def resumed(self, status: int, found: Any) -> None:
        """Take over from the core.

        Args:
            status: 0 if the root branch returned `found`, -1 if it raised it, 1 if it requested it.
            found: a result, an error, or a request other than of values.
        """
        self.steps = None
        # A status of -1 selects the last of the three. Without `steps`, the core leaves the program to `advance`.
        (self._end, self._take, self._fail)[status](self._root, found)

    def advance(self, log: Log) -> None:
        """Run until every branch waits or has ended.

        Args:
            log: records the calls; its draws are numbered by the branch that runs.
        """
        ready, waiting = self._ready, self._waiting
        while ready:
            # An error of another branch may have ended this one after it became ready; see `_fail`.
            branch, answer, error = ready.popleft()
            if branch.is_over:
                continue
            log.draw = branch.next_draw
            go_on, given = (branch.steps.send, answer) if error is None else (branch.steps.throw, error)
            try:
                request = go_on(given) if self._switch_mode is None else self._in_its_mode(branch, go_on, given)
            except StopIteration as end:
                self._end(branch, end.value)
            except self._caught as raised:
                begun = raised.__traceback__  # begins with the frame of this method, which would keep all programs
                self._fail(branch, raised.with_traceback(begun and begun.tb_next))
            else:
                if type(request) is Asked:
                    waiting.append((branch, request))
                else:
                    self._take(branch, request)

    def end(self, error: BaseException) -> None:
        """End all branches because of an error."""
        self.is_over, self.steps, self.asked = True, None, None
        self._waiting.clear()
        self._root.end(error, self._caught)

    def fail(self, error: Exception) -> None:
        """End all branches, and record the error as the program's."""
        self.end(error)
        self.error = error

    def where(self) -> str:
        """Return the function and line in which the first waiting branch waits, for messages."""
        program: Any = self.waiting[0][0].program
        while hasattr(getattr(program, "cr_await", None), "cr_frame"):
            program = program.cr_await
        frame = getattr(program, "cr_frame", None)
        return "at the start" if frame is None else f"in {frame.f_code.co_qualname}, line {frame.f_lineno}"

    def _resume(self, branch: Branch, answer: Any) -> None:
        """Resume the only branch that is ready: in the core if it is the root, and no mode is switched."""
        if branch is self._root and self._switch_mode is None:
            self.steps, self.reply = branch.steps, answer
        else:
            self._ready.append((branch, answer, None))

    def _in_its_mode(self, branch: Branch, go_on: Callable[[Any], Any], given: Any) -> Any:
        assert self._switch_mode is not None
        # Switching returns the previous mode: first the caller's, to be restored, then that in which the branch
        # stopped.
        around = self._switch_mode(branch.mode)
        try:
            return go_on(given)
        finally:
            branch.mode = self._switch_mode(around)

    def _take(self, branch: Branch, request: Any) -> None:
        """Fork a branch that gathers others; raise an error in it for any other request."""
        if not isinstance(request, Gathered):
            self._ready.append((branch, None, refusal(request)))
        else:
            n = len(request.branches)
            join = Join(branch, n)
            counts = branch.draws.fork(n)
            branch.below = [Branch(x, counts[k], join, k) for k, x in enumerate(request.branches)]
            self._ready.extend((below, None, None) for below in branch.below)

    def _end(self, branch: Branch, result: Any) -> None:
        branch.is_over = True
        join = branch.join
        if join is None:
            self.result, self.is_over = result, True
            return
        join.results[branch.place] = result
        join.n_left -= 1
        if not join.n_left:
            join.waiting.below = []
            self._ready.append((join.waiting, join.results, None))

    def _fail(self, branch: Branch, error: BaseException) -> None:
        """End the siblings of a branch that raised, and raise its error where they were gathered."""
        branch.is_over = True
        if branch.join is None:
            self.error, self.is_over = error, True
            return
        above = branch.join.waiting
        beside, above.below = above.below, []
        for other in beside:
            other.end(error, self._caught)
        # In place, because a running `advance` holds this list in a local variable.
        self._waiting[:] = [(x, asked) for x, asked in self._waiting if not x.is_over]
        self._ready.append((above, None, error))


def _close(steps: Any, error: BaseException, caught: type[BaseException]) -> None:
    """Close a coroutine because of an error; errors that closing raises are added to it as notes."""
    for _ in range(MOST_CLOSES):
        try:
            steps.close()
        except caught as raised:
            error.add_note(f"a coroutine that this error closed raised {type(raised).__name__}: {raised}")
        else:
            return
