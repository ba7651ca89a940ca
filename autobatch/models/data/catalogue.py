"""All formats of data that come with the models, and all generators by name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from autobatch.models.data.dataset import (
    LABELLED_TREES,
    LATTICES,
    PAIRS,
    PICTURES,
    SENTENCES,
    TEXTS,
    TOLD,
    TREES,
    Generator,
)
from autobatch.models.data.structures import CIRCUITS, COMPARISONS, MOLECULES, REPEATS

FORMATS = (
    TREES, LABELLED_TREES, SENTENCES, LATTICES, PICTURES, PAIRS, TOLD, TEXTS, MOLECULES, COMPARISONS, REPEATS, CIRCUITS
)  # fmt: skip
GENERATORS: Mapping[str, Generator] = dict(chain.from_iterable(form.generators.items() for form in FORMATS))
