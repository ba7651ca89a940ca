"""What is known about the mini-batches of one class of sizes, and what is being measured about them."""

from __future__ import annotations

from dataclasses import dataclass, field

from autobatch.tuning.costs import Work
from autobatch.tuning.trial import Trial, Watch
from autobatch.tuning.variant import Variant


@dataclass(eq=False)
class Seat:
    """A class of mini-batches and how they run.

    Attributes:
        variant: that is in force.
        why: it is.
        trial, watch: what is going on.
        looked_up: whether the cache was asked, with the signature of the model then.
        begun: whether it is known what there is to try.
        works, nodes: of the first mini-batch, under each variant on trial.
        medians: seconds per node of what was tried, as it was measured last.
        pause: mini-batches left until threads are tried again; 0 for never.
        pauses: how many there were.
    """

    label: str
    variant: Variant
    why: str
    trial: Trial | None = None
    watch: Watch | None = None
    looked_up: bool = False
    begun: bool = False
    signature: str = ""
    works: dict[Variant, Work] = field(default_factory=dict)
    nodes: int = 0
    medians: dict[Variant, float] = field(default_factory=dict)
    pause: int = 0
    pauses: int = 0
