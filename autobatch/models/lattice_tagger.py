"""The common part of models that tag every position of a lattice: states, metrics and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import autobatch as ab
from autobatch.models.data.dataset import LATTICES, load_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.metric import count_tagged, pick_best, predict_tags, tag_probabilities
from autobatch.models.spec import Counts, ModelSpec


class LatticeTagger(ab.Module):
    """The base of lattice models: combines states over arcs, and tags positions by their states.

    A subclass adds its parameters and the four methods below; a state is a tuple that begins with h (H,).
    """

    output: ab.Linear

    def first_state(self) -> Any:
        """Return the learned state of position 0."""
        raise NotImplementedError

    def read_character(self, state: Any, character: int) -> Any:
        """Return the state after an arc with a character."""
        raise NotImplementedError

    def read_word(self, state: Any, word: int) -> Any:
        """Return the state after an arc with a word."""
        raise NotImplementedError

    def join(self, arcs: list[Any]) -> Any:
        """Combine the states of the arcs that end at a position, at least one, to its state."""
        raise NotImplementedError

    @ab.cell
    def tag_loss(self, state: Any, tag: int) -> Any:
        """Compute the cross-entropy of a position's tag: a scalar."""
        return ab.cross_entropy(self.output(state[0]), tag)

    @ab.cell
    def tag_scores(self, state: Any) -> Any:
        """Score the tags of a position: logits (C,)."""
        return self.output(state[0])

    def states(self, lattice: Lattice[int]) -> list[Any]:
        """Compute the states of positions 1 to L - 1."""
        states = [self.first_state()]
        for end in range(1, len(lattice.arcs)):
            arcs = [
                self.read_character(states[start], word) if start == end - 1 else self.read_word(states[start], word)
                for start, word in lattice.arcs[end]
            ]
            states.append(self.join(arcs))
        return states[1:]

    def loss(self, lattice: Lattice[int]) -> Any:
        """Sum the cross-entropies of positions 1 to L - 1: a scalar."""
        losses = [self.tag_loss(state, tag) for state, tag in zip(self.states(lattice), lattice.tags[1:], strict=True)]
        return ab.sum_n(losses, shape=())

    def scores(self, lattice: Lattice[int]) -> Any:
        """Score the tags of positions 1 to L - 1: a list of (C,)."""
        return [self.tag_scores(state) for state in self.states(lattice)]


def count_correct(outputs: Any, lattices: Sequence[Lattice[int]], vocabularies: Mapping[str, Vocabulary]) -> Counts:
    """Count correct and all tags and entities, without the first position of each lattice.

    Args:
        outputs: results of batched `LatticeTagger.scores`: per lattice the logits of its positions.
        lattices: one per output.
        vocabularies: the names of the tags.
    """
    names = vocabularies["tags"]
    return count_tagged(pick_best(outputs, names), [lattice.tags[1:] for lattice in lattices], names)


def describe(name: str, summary: str, model: Callable[..., LatticeTagger]) -> ModelSpec:
    """Make the spec of a model of lattices."""
    return ModelSpec(
        name=name,
        summary=summary,
        model=model,
        generators=tuple(LATTICES.generators),
        reads=LATTICES.reads,
        default_data="lattices",
        load=load_lattices,
        load_inputs=load_lattices.inputs,
        count_correct=count_correct,
        predict=predict_tags,
        probabilities=tag_probabilities,
    )
