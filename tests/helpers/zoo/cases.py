"""All models of the zoo."""

from __future__ import annotations

from helpers.zoo import (
    dynamic,
    first,
    graphs,
    language,
    latent,
    machines,
    products,
    seq2seq,
    sets,
    taggers,
    transformer,
    trees,
    walks,
)

FAMILIES = (
    first,
    products,
    trees,
    seq2seq,
    transformer,
    graphs,
    taggers,
    machines,
    language,
    sets,
    latent,
    dynamic,
    walks,
)
CASES = [case for family in FAMILIES for case in family.CASES]
