"""How much work fits into some seconds: what the last rounds did, scaled to the time that they shall take."""

from __future__ import annotations

FIRST_RATE = 1e11  # multiply-adds a second, until rounds were timed: so that the first ones are large


class Budget:
    """The work that a round of some seconds may have, in multiply-adds.

    A round that was too long says how much less there shall be, at least half: a small one may have been interrupted.
    One that was short says how much there may be at least: larger rounds do more a second, as their batches are fuller.

    Args:
        seconds: that a round shall take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self.work = seconds, seconds * FIRST_RATE

    def learn(self, work: float, seconds: float) -> None:
        """Learn from a round with so much work, which took so long."""
        scaled = work * self._seconds / max(seconds, 1e-9)
        self.work = max(0.5 * self.work if seconds > self._seconds else self.work, scaled)
