"""Compare variants by running them in turn on whole mini-batches, and monitor the chosen number of threads.

Each mini-batch runs once, under the variant whose turn it is. The first run of each variant does not count: it
compiles, and grows buffers. Rounds follow, in each of which every variant runs once, in a new order. The measure is
time per node, since mini-batches differ. The current variant is replaced only by one that is clearly faster: its median
is lower by a margin, and it was faster in most rounds. If only its median is lower, the number of rounds is doubled. A
variant that is much slower is dropped after two rounds.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections import deque
from collections.abc import Sequence

from autobatch.tuning.variant import Variant

ROUNDS, MOST_ROUNDS = 7, 15
MARGIN = 0.03  # of time that a variant must save
WON = 0.73  # of the rounds that it must win: 6 of 7, or 11 of 15; by chance alone one time in sixteen
HOPELESS = 1.5  # times the median of the current variant, in all of two rounds or more: dropped
WINDOW, ENOUGH = 9, 5  # mini-batches that are watched, and the fewest to judge by
MUCH_WORSE = 1.5  # times what one thread took


class Trial:
    """Tries variants in turn, and chooses one.

    Args:
        variants: all different; the first is the current one.
    Attributes:
        done: whether it is decided.

    >>> slow, fast = Variant(), Variant(threads=2)
    >>> trial = Trial([slow, fast])
    >>> while not trial.done:
    ...     variant = trial.next()
    ...     trial.add(variant, 1.0 if variant is slow else 0.9)
    >>> trial.chosen == fast, trial.winners == [fast]
    (True, True)
    """

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = list(variants)
        self._seconds: dict[Variant, list[float]] = {variant: [] for variant in variants}
        self._turns = list(variants)
        self._round = -1  # the first, which does not count
        self.done = len(self.variants) < 2

    def next(self) -> Variant:
        """The variant whose turn it is; the same until its time is added."""
        return self._turns[0]

    def add(self, variant: Variant, seconds: float) -> None:
        """Add the time of a run, per node; it counts if it was the turn of this variant."""
        if self.done or variant != self._turns[0]:
            return
        del self._turns[0]
        if self._round >= 0:
            self._seconds[variant].append(seconds)
        if not self._turns:
            self._end_round()

    @property
    def medians(self) -> dict[Variant, float]:
        """Median seconds per node of each variant that has run, including dropped ones."""
        return {variant: statistics.median(times) for variant, times in self._seconds.items() if times}

    @property
    def winners(self) -> list[Variant]:
        """The variants that are clearly faster than the current one, best first."""
        return self._faster(WON)

    @property
    def chosen(self) -> Variant:
        """The fastest of the winners, or the current variant."""
        return next(iter(self.winners), self.variants[0])

    def _faster(self, won: float) -> list[Variant]:
        """List the variants whose median is lower by the margin and that won this share of the rounds."""
        force, medians = self.variants[0], self.medians
        rounds = self._seconds[force]

        def is_faster(variant: Variant) -> bool:
            n_won = sum(map(operator.lt, self._seconds[variant], rounds))
            return medians[variant] < (1 - MARGIN) * medians[force] and n_won >= math.ceil(won * len(rounds))

        return sorted(filter(is_faster, self.variants), key=medians.__getitem__) if rounds else []

    def _end_round(self) -> None:
        """Drop hopeless variants, and begin the next round if one is needed."""
        self._round += 1
        if self._round >= 2:
            limit = HOPELESS * self.medians[self.variants[0]]
            self.variants[1:] = [v for v in self.variants[1:] if min(self._seconds[v]) <= limit]
        undecided = len(self._faster(0.0)) > len(self.winners)
        self.done = len(self.variants) < 2 or self._round == MOST_ROUNDS or (self._round == ROUNDS and not undecided)
        first = self._round % len(self.variants)
        self._turns = self.variants[first:] + self.variants[:first]


class Watch:
    """Detects that mini-batches with several threads have become much slower than with one.

    Library threads wait for each other in busy loops. If another process takes one of the cores, all threads wait for
    the interrupted one until the system resumes it: a step took 20 times as long here.

    Args:
        one_s: seconds per node with one thread, as measured.

    >>> watch = Watch(1.0)
    >>> [watch.add(seconds) for seconds in (0.6, 0.6, 9.0, 8.0, 9.0)]
    [False, False, False, False, True]
    """

    def __init__(self, one_s: float) -> None:
        self.one_s = one_s
        self._recent: deque[float] = deque(maxlen=WINDOW)

    @property
    def ratio(self) -> float:
        """The median of the last mini-batches, relative to one thread."""
        return statistics.median(self._recent) / self.one_s

    def add(self, seconds: float) -> bool:
        """Add the time of a mini-batch, per node; say whether one thread is better now."""
        self._recent.append(seconds)
        return len(self._recent) >= ENOUGH and self.ratio > MUCH_WORSE
