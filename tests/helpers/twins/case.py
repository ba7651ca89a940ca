"""A model, its PyTorch twin and instances to compare them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model and its twin, which has `loss(instance)` and `scores(instance)`, the logits of all places (N, C)."""

    name: str
    draw: Callable[..., tuple[Any, list[Any]]]
    """Draws, by seed, n_instances and dim, a float64 model and instances of different sizes."""
    make_twin: Callable[[Mapping[str, Any]], Any]
    """Builds the twin from the model's `state_dict()`, with its sizes and dtype."""
    name_in_twin: Callable[[str], str] = str
    """Translates the name of a parameter."""
    place_scores: Callable[[Any], Any] = list
    """Maps the results of batched `scores` to the logits of all places of each instance."""

    @property
    def model(self) -> str:
        """Return the name of the model, which may have several cases: "graph-network" of "graph-network, sum"."""
        return self.name.partition(",")[0]
