"""Load and encode more kinds of data, as `dataset` does: molecules, pairs of texts, repeated words, circuits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autobatch.models.data import compounds, edits, gates, moves
from autobatch.models.data.circuit import Circuit, read_circuits
from autobatch.models.data.comparison import Comparison, read_comparisons
from autobatch.models.data.dataset import Dataset, Format, Generator, count_lengths, count_words
from autobatch.models.data.molecule import Molecule, read_molecules
from autobatch.models.data.repeats import Repeats, read_repeats
from autobatch.models.data.vocabulary import Vocabulary

MOLECULES = Format(
    reads="molecules in SMILES, one a line with a number to predict: CC(=O)O -4.48; a file, or a folder with train.txt "
    "and dev.txt",
    read=read_molecules,
    generators={
        "compounds": Generator(
            "small organic molecules with heats of formation that follow from their bonds and rings",
            compounds.draw_compounds,
        )
    },
)
COMPARISONS = Format(
    reads="two texts and a label in each line, tabs between: a cat<tab>an animal<tab>yes; a file, or a folder with "
    "train.txt and dev.txt",
    read=read_comparisons,
    generators={
        "edits": Generator("pairs of words, letter by letter, labelled with the edits between both", edits.draw_edits)
    },
)
REPEATS = Format(
    reads="words with counts and tags, one text a line: right*3|F left*1|E; a file, or a folder with train.txt and "
    "dev.txt",
    read=read_repeats,
    generators={"moves": Generator("walks around six seats, tagged with the seat after each move", moves.draw_moves)},
)
CIRCUITS = Format(
    reads="graphs, one a line, of nodes with what they read and tags: true()|1 not(0)|0; a file, or a folder with "
    "train.txt and dev.txt",
    read=read_circuits,
    generators={"circuits": Generator("random circuits of logic gates, tagged with their values", gates.draw_circuits)},
)


def load_molecules(
    data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Dataset:
    """Load molecules with numbers, kinds of atoms and bonds encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = MOLECULES.find(data, rng)
    known = vocabularies or {
        "atoms": count_words(molecule.atoms for molecule in train),
        "bonds": count_words((bond for _, _, bond in molecule.bonds) for molecule in train),
    }
    atom, bond = known["atoms"].id, known["bonds"].id

    def encode(molecule: Molecule[str]) -> Molecule[int]:
        bonds = [(one, other, bond(kind)) for one, other, kind in molecule.bonds]
        return Molecule([atom(kind) for kind in molecule.atoms], bonds, molecule.target)

    return Dataset(data, [encode(m) for m in train], [encode(m) for m in dev], known, {**count_lengths(known), **sizes})


def load_comparisons(
    data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Dataset:
    """Load pairs of texts with labels, words and labels encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = COMPARISONS.find(data, rng)
    known = vocabularies or {
        "words": count_words([*pair.left, *pair.right] for pair in train),
        "classes": count_words(([pair.label] for pair in train), min_count=1),
    }
    word, label = known["words"].id, known["classes"].id

    def encode(pair: Comparison[str]) -> Comparison[int]:
        return Comparison([word(w) for w in pair.left], [word(w) for w in pair.right], label(pair.label))

    return Dataset(data, [encode(p) for p in train], [encode(p) for p in dev], known, {**count_lengths(known), **sizes})


def load_repeats(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load repeated words with tags, words and tags encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = REPEATS.find(data, rng)
    known = vocabularies or {
        "words": count_words(text.words for text in train),
        "tags": count_words((text.tags for text in train), min_count=1),
    }
    word, tag = known["words"].id, known["tags"].id

    def encode(text: Repeats[str]) -> Repeats[int]:
        return Repeats([word(w) for w in text.words], text.counts, [tag(t) for t in text.tags])

    return Dataset(data, [encode(t) for t in train], [encode(t) for t in dev], known, {**count_lengths(known), **sizes})


def load_circuits(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load graphs of nodes of several kinds, kinds and tags encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = CIRCUITS.find(data, rng)
    known = vocabularies or {
        "kinds": count_words(circuit.kinds for circuit in train),
        "tags": count_words((circuit.tags for circuit in train), min_count=1),
    }
    kind, tag = known["kinds"].id, known["tags"].id

    def encode(circuit: Circuit[str]) -> Circuit[int]:
        return Circuit([kind(k) for k in circuit.kinds], circuit.inputs, [tag(t) for t in circuit.tags])

    return Dataset(data, [encode(c) for c in train], [encode(c) for c in dev], known, {**count_lengths(known), **sizes})
