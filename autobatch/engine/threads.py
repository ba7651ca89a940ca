"""Choose the number of threads by measurement, for `threads="auto"`; return to one thread on a busy machine.

A class consists of the mini-batches of one mode (training or inference) whose sizes round up to the same power of two.
Its first mini-batch runs with one thread. A trial follows: 1, 2, 4, ... threads take turns on the next mini-batches,
each of which runs once. The first run with each number does not count, because it compiles; rounds in different orders
follow. A number of threads is chosen over one thread if its median time per node is lower by a margin and it was faster
in most rounds. Its times are watched from then on: if another process takes a core, all threads wait for the
interrupted one. Results differ by rounding only.
"""

from __future__ import annotations

import operator
import statistics
from collections import deque

from autobatch.blas.threads import most_threads
from autobatch.trace.record import MiniBatch

ROUNDS, WON = 7, 6  # the rounds that count, and how many of them a number of threads must win
MARGIN = 0.03  # the share of the time that a number of threads must save
MUCH_WORSE = 1.5  # the ratio to one thread's time at which a number is dropped: after two rounds, or while watched
WINDOW, ENOUGH = 9, 5  # the number of recent mini-batches that are watched, and the fewest to judge by
PAUSE, MOST_DOUBLED = 200, 6  # mini-batches until the next trial; doubled after each failure, at most this often


class SizeClass:
    """The class of mini-batches of one mode and of similar size.

    Attributes:
        threads, why: the chosen number of threads, and the reason as text.
        has_run: whether a mini-batch of the class was measured.
    """

    def __init__(self) -> None:
        self.threads, self.why, self.has_run = 1, "not measured yet", False
        self._turns: list[int] = []  # the numbers of threads of the next mini-batches, during a trial
        self._seconds: dict[int, list[float]] = {}  # by number of threads: seconds per node in each round of the trial
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._pause, self._n_pauses = 1, 0  # mini-batches until the next trial; 0 for never

    @property
    def is_settled(self) -> bool:
        """Return whether a trial has ended and none is in progress."""
        return not self._turns and bool(self._seconds)

    def next(self) -> int:
        """Return the number of threads for the next mini-batch; unchanged until its time is added."""
        return self._turns[0] if self._turns else self.threads

    def add(self, threads: int, seconds: float) -> None:
        """Add the seconds per node of a mini-batch; during a trial, ignore them unless it was this number's turn."""
        self.has_run = True
        if self._turns:
            if threads == self._turns[0]:
                self._count(seconds)
        elif self.threads > 1:
            self._watch(seconds)
        elif self._pause:
            self._pause -= 1
            if not self._pause:
                self._begin()

    def _begin(self) -> None:
        """Begin a trial if more than one thread is available."""
        most = most_threads()
        numbers = sorted({2**k for k in range(most.bit_length())} | {most})
        self._seconds = {n: [] for n in numbers}
        orders = [numbers[k % len(numbers) :] + numbers[: k % len(numbers)] for k in range(ROUNDS + 1)]
        self._turns = [n for order in orders for n in order] if most > 1 else []
        self.why = (
            f"being compared with {', '.join(map(str, numbers[1:]))} threads" if most > 1 else "no more are available"
        )

    def _count(self, seconds: float) -> None:
        """Add the time of the number whose turn it is; at the end of a round, drop numbers that are much slower."""
        n, n_left = self._turns.pop(0), len(self._seconds)
        if len(self._turns) >= ROUNDS * n_left:
            return  # in the first of ROUNDS + 1 rounds, which may compile
        self._seconds[n].append(seconds)
        one = self._seconds[1]
        # Only after whole rounds, in which both have run equally often.
        hopeless = {
            n for n, times in self._seconds.items()
            if len(times) > 1 and len(times) == len(one) and min(times) > MUCH_WORSE * statistics.median(one)
        }  # fmt: skip
        self._turns = [n for n in self._turns if n not in hopeless]
        if not self._turns:
            self._conclude()

    def _conclude(self) -> None:
        """Choose the fastest number of threads among those clearly faster than one; one thread if there is none."""
        one, medians = self._seconds[1], {n: statistics.median(times) for n, times in self._seconds.items()}

        def is_faster(n: int) -> bool:
            # `map` ends with the shorter list: numbers that were dropped have fewer times.
            n_won = sum(map(operator.lt, self._seconds[n], one))
            return n_won >= WON and medians[n] < (1 - MARGIN) * medians[1]

        self.threads = min(filter(is_faster, medians), key=medians.__getitem__, default=1)
        self.why = "ns per node: " + ", ".join(f"{n} thread{'s' * (n > 1)} {1e9 * s:.0f}" for n, s in medians.items())
        if self.threads == 1 and max(medians.values()) > MUCH_WORSE * medians[1]:
            self._wait()  # the machine may be busy

    def _watch(self, seconds: float) -> None:
        """Return to one thread if recent mini-batches took much longer than one thread did in the trial."""
        self._recent.append(seconds)
        ratio = statistics.median(self._recent) / statistics.median(self._seconds[1])
        if len(self._recent) >= ENOUGH and ratio > MUCH_WORSE:
            self.why = (
                f"back to one thread: recent mini-batches took {ratio:.1f} times as long with {self.threads} threads "
                f"as with one in the trial; the machine may be busy"
            )
            self.threads = 1
            self._recent.clear()
            self._wait()

    def _wait(self) -> None:
        """Pause until the next trial; each pause is twice as long, up to a limit."""
        self._pause, self._n_pauses = PAUSE << min(self._n_pauses, MOST_DOUBLED), self._n_pauses + 1


class ThreadChoice:
    """The choice of the number of threads for each class of mini-batches of one function."""

    def __init__(self) -> None:
        self._classes: dict[str, SizeClass] = {}

    @property
    def is_settled(self) -> bool:
        """Return whether no class met so far is in a trial."""
        return all(one.is_settled or not one.has_run for one in self._classes.values())

    def of(self, minibatch: MiniBatch, training: bool) -> SizeClass:
        """Return the class of a mini-batch, made when first met."""
        return self._classes.setdefault(_label(minibatch, training), SizeClass())

    def describe(self, minibatch: MiniBatch, training: bool) -> str:
        """Describe the number of threads for mini-batches of this class, and the reason, as text."""
        found = self.of(minibatch, training)
        return f"{_label(minibatch, training)}: {found.threads} thread{'s' * (found.threads > 1)} ({found.why})"


def _label(minibatch: MiniBatch, training: bool) -> str:
    """Return the mode and size of a mini-batch as text; the size is in nodes, or in instances before recording."""
    # Without a new graph, the instances are recorded graphs themselves.
    listed, recorded = minibatch.instances, minibatch.graph is None
    size, unit = (sum(graph.n_nodes for graph in listed), "nodes") if recorded else (len(listed), "instances")
    return f"{'train' if training else 'infer'} up to {1 << max(size - 1, 0).bit_length()} {unit}"
