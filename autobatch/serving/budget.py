"""The work budget of a round: the work of the last rounds, scaled to their target time."""

from __future__ import annotations

FIRST_RATE = 1e11  # multiply-adds per second, assumed until a round is timed; high, so that first rounds are large


class Budget:
    """The work that a round of a given duration may have, in multiply-adds.

    After a round that was too long, the budget shrinks to the work that would have fitted, but at most by half, because
    an interruption may have caused the delay. After a shorter round it grows to the work that would have fitted. It
    does not shrink then, because larger rounds have fuller batches and so do more work per second.

    Args:
        seconds: the target duration of a round.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self.work = seconds, seconds * FIRST_RATE

    def learn(self, work: float, seconds: float) -> None:
        """Update the budget after a round with this work and duration."""
        scaled = work * self._seconds / max(seconds, 1e-9)
        self.work = max(0.5 * self.work if seconds > self._seconds else self.work, scaled)
