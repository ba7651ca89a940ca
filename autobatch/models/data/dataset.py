"""Load the data that a user names (a built-in generator, a file or a folder of files), and encode it for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autobatch.errors import DataError
from autobatch.models.data import (
    agreement,
    brackets,
    commands,
    dag,
    listops,
    python_ast,
    reviews,
    scenes,
    sst,
    tagging,
    translation,
)
from autobatch.models.data.labelled_tree import LabelledTree, read_labelled_trees
from autobatch.models.data.lattice import Lattice, read_lattices
from autobatch.models.data.ordered_tree import Told, read_told
from autobatch.models.data.pair import Pair, read_pairs
from autobatch.models.data.picture import Picture, read_pictures
from autobatch.models.data.sentence import Sentence, SpelledSentence, read_sentences, read_texts
from autobatch.models.data.vocabulary import UNKNOWN, Vocabulary

N_DRAWN = 4500  # training and development instances of a generator
HELD_OUT = 9, 10  # the last ninth of drawn instances, or the last tenth of a single file, is development data
MIN_COUNT_READ_WHOLE = 6  # rarer words are spelled, by models that read characters
MIN_COUNT = 2  # rarer words of the training data share the unknown word's id and so train it


@dataclass(frozen=True)
class Dataset:
    """Instances to learn from and to measure on."""

    name: str
    train: Sequence[Any]
    dev: Sequence[Any]
    vocabularies: Mapping[str, Vocabulary]
    """The vocabularies of the encoding, by name: "words", "characters", "tags", as far as the data has them."""
    sizes: Mapping[str, int]
    """The sizes that a model of the data needs, by constructor argument: `n_words`, `n_tags`, `n_classes`."""

    @property
    def items(self) -> list[Any]:
        """All instances, in the order of the files they are from."""
        return [*self.train, *self.dev]


class Load(Protocol):
    """Loads data by name, encoded by the given vocabularies, or else by those of its training instances."""

    def __call__(
        self, data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None, /
    ) -> Dataset:
        """Load it; `rng` draws a generator's instances."""


@dataclass(frozen=True)
class Generator:
    """Draws instances: `draw(n_instances, rng)`, fewer only if it has no more; `sizes` are those of a `Dataset`."""

    summary: str
    draw: Callable[[int, np.random.Generator], list[Any]]
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """Instances of one kind: the reader of their files, and their generators."""

    reads: str
    read: Callable[[Path], list[Any]]
    generators: Mapping[str, Generator]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The sizes of data in files."""
    parts: tuple[str, str] = ("train.txt", "dev.txt")
    """The files of a folder."""

    def find(self, data: str, rng: np.random.Generator) -> tuple[list[Any], list[Any], Mapping[str, int]]:
        """Draw or read training and development instances; also give their sizes.

        Raises:
            DataError: there is no such data, or it is malformed.
        """
        if generator := self.generators.get(data):
            return *_hold_out(generator.draw(N_DRAWN, rng), HELD_OUT[0]), generator.sizes
        path = Path(data)
        if path.is_dir():
            train, dev = self.parts
            return self.read(path / train), self.read(path / dev), self.sizes
        if not path.exists():
            raise DataError(
                f"cannot load data {data!r}: there is no such file or folder, and no generator of that name; "
                f"give a path, or one of: {', '.join(self.generators)}."
            )
        return *_hold_out(self.read(path), HELD_OUT[1]), self.sizes


TREES = Format(
    reads="labelled binary trees, one a line: (3 (2 good) (2 film)); a file, or a folder with train.txt and dev.txt",
    read=sst.read_trees,
    generators={
        "listops": Generator(
            "nested list operations such as [MAX 2 9 [MIN 4 7] 0], labelled with their values 0 to 9",
            listops.draw_trees,
            {"n_classes": listops.N_CLASSES},
        ),
        "python-ast": Generator(
            "functions of this Python's standard library as trees, labelled with what their names begin with",
            python_ast.draw_trees,
            {"n_classes": python_ast.N_CLASSES},
        ),
        "reviews": Generator(
            "reviews that are good or bad by a few of their words, read from the left",
            reviews.draw_reviews,
            {"n_classes": reviews.N_CLASSES},
        ),
        "brackets": Generator(
            "nested lists and sets of letters, which all end by the same word",
            brackets.draw_brackets,
            {"n_classes": brackets.N_CLASSES},
        ),
    },
    sizes={"n_classes": sst.N_CLASSES},
)
LABELLED_TREES = Format(
    reads='trees of any shape, a line of JSON each: {"word": "MAX", "label": "9", "children": [{"word": "2"}, ...]}; a '
    "file, or a folder with train.jsonl and dev.jsonl",
    read=read_labelled_trees,
    generators={
        "operations": Generator(
            "nested list operations as in listops, with all arguments below their operator", listops.draw_operations
        ),
        "functions": Generator(
            "functions as in python-ast, with all parts of a construct below it", python_ast.draw_functions
        ),
    },
    parts=("train.jsonl", "dev.jsonl"),
)
SENTENCES = Format(
    reads="tagged sentences, one a line: Paris|I-LOC is|O; a file, or a folder with train.txt and dev.txt",
    read=read_sentences,
    generators={
        "tagging": Generator("sentences of a made-up language with people, places and groups", tagging.draw_sentences),
        "rare-names": Generator(
            "the same with names that tell by their endings what they name", tagging.draw_rare_names
        ),
    },
)
LATTICES = Format(
    reads="lattices of characters and words as numbers; a file, or a folder with train.txt and dev.txt",
    read=read_lattices,
    generators={
        "lattices": Generator("characters with the words that they may be read as, tagged by words", dag.draw_lattices),
        "lattice-names": Generator(
            "the same, some of whose words are names of people, places and groups", dag.draw_named_lattices
        ),
        "random-dag": Generator("random graphs, each node tagged with its longest way from the start", dag.draw_dags),
    },
)
PICTURES = Format(
    reads="pictures of tagged pixels, one row a line: blue|sky red|boat, a blank line between two; a file, or a folder "
    "with train.txt and dev.txt",
    read=read_pictures,
    generators={"scenes": Generator("sky over sea and land, in colours that tell little alone", scenes.draw_scenes)},
)
PAIRS = Format(
    reads="sentences with translations in the same lines of another file: a folder with train.en and dev.en, or one "
    "file; beside each, one that differs in the suffix alone, such as train.vi",
    read=read_pairs,
    generators={
        "translation": Generator("sentences of a small language, and the same in another order", translation.draw_pairs)
    },
    parts=("train.en", "dev.en"),
)
TOLD = Format(
    reads="a text, a tab and a tree in each line: turn around<tab>(do (turn left left)); a file, or a folder with "
    "train.txt and dev.txt",
    read=read_told,
    generators={
        "commands": Generator("commands of a few words, and trees of what they make a robot do", commands.draw_commands)
    },
)
TEXTS = Format(
    reads="sentences without tags, one a line: the key falls; a file, or a folder with train.txt and dev.txt",
    read=read_texts,
    generators={
        "agreement": Generator("sentences whose verb agrees with a noun that may be far away", agreement.draw_texts)
    },
)


def load_trees(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load labelled binary trees, their words encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = TREES.find(data, rng)
    known = vocabularies or {"words": count_words(tree.words() for tree in train)}
    encode = known["words"].encode
    sizes = {"n_words": len(known["words"]), **sizes}
    return Dataset(data, [encode(tree) for tree in train], [encode(tree) for tree in dev], known, sizes)


def load_labelled_trees(
    data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Dataset:
    """Load trees with any number of children, words and labels encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = LABELLED_TREES.find(data, rng)
    known = vocabularies or {
        "words": count_words((node.word for node in tree.postorder()) for tree in train),
        "labels": count_words(
            ((node.label for node in tree.postorder() if node.label is not None) for tree in train), min_count=1
        ),
    }
    word, label = known["words"].id, known["labels"].id

    def encode(tree: LabelledTree[str]) -> LabelledTree[int]:
        return tree.map(word, label)

    return Dataset(data, [encode(t) for t in train], [encode(t) for t in dev], known, {**count_lengths(known), **sizes})


def load_sentences(
    data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Dataset:
    """Load tagged sentences, words and tags encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = SENTENCES.find(data, rng)
    known = vocabularies or {
        "words": count_words(sentence.words for sentence in train),
        "tags": count_words((sentence.tags for sentence in train), min_count=1),
    }
    word, tag = known["words"].id, known["tags"].id

    def encode(sentence: Sentence[str]) -> Sentence[int]:
        return Sentence([word(w) for w in sentence.words], [tag(t) for t in sentence.tags])

    return Dataset(data, [encode(s) for s in train], [encode(s) for s in dev], known, {**count_lengths(known), **sizes})


def load_spelled_sentences(
    data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Dataset:
    """Load tagged sentences, whose words with fewer than 6 uses are given by characters; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = SENTENCES.find(data, rng)
    known = vocabularies or {
        "words": count_words((sentence.words for sentence in train), MIN_COUNT_READ_WHOLE),
        "characters": count_words(word for sentence in train for word in sentence.words),
        "tags": count_words((sentence.tags for sentence in train), min_count=1),
    }
    word, character, tag = known["words"].id, known["characters"].id, known["tags"].id

    def read(text: str) -> int | list[int]:
        return [character(c) for c in text] if word(text) == UNKNOWN else word(text)

    def encode(sentence: Sentence[str]) -> SpelledSentence:
        return SpelledSentence([read(w) for w in sentence.words], [tag(t) for t in sentence.tags])

    return Dataset(data, [encode(s) for s in train], [encode(s) for s in dev], known, {**count_lengths(known), **sizes})


def load_lattices(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load lattices, characters, words and tags encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = LATTICES.find(data, rng)
    known = vocabularies or {
        "characters": count_words(lattice.characters() for lattice in train),
        "words": count_words(lattice.words() for lattice in train),
        "tags": count_words((lattice.tags[1:] for lattice in train), min_count=1),
    }
    character, word, tag = known["characters"].id, known["words"].id, known["tags"].id

    def encode(lattice: Lattice[str]) -> Lattice[int]:
        return Lattice(
            [tag(t) for t in lattice.tags],
            [
                [(start, character(w) if start == end - 1 else word(w)) for start, w in arcs]
                for end, arcs in enumerate(lattice.arcs)
            ],
        )

    return Dataset(data, [encode(x) for x in train], [encode(x) for x in dev], known, {**count_lengths(known), **sizes})


def load_pictures(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load pictures, words and tags of their pixels encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = PICTURES.find(data, rng)
    known = vocabularies or {
        "words": count_words(picture.words() for picture in train),
        "tags": count_words((picture.tags() for picture in train), min_count=1),
    }
    word, tag = known["words"].id, known["tags"].id

    def encode(picture: Picture[str]) -> Picture[int]:
        return picture.map(word, tag)

    return Dataset(data, [encode(p) for p in train], [encode(p) for p in dev], known, {**count_lengths(known), **sizes})


def load_pairs(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load sentences with translations, words encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = PAIRS.find(data, rng)
    known = vocabularies or {
        "source_words": count_words(pair.source for pair in train),
        "target_words": count_words(pair.target for pair in train),
    }
    source, target = known["source_words"].id, known["target_words"].id

    def encode(pair: Pair[str]) -> Pair[int]:
        return Pair([source(w) for w in pair.source], [target(w) for w in pair.target], pair.reference)

    return Dataset(data, [encode(p) for p in train], [encode(p) for p in dev], known, {**count_lengths(known), **sizes})


def load_told(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load texts with the trees that they tell of, words and labels encoded; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = TOLD.find(data, rng)
    known = vocabularies or {
        "words": count_words(told.words for told in train),
        "labels": count_words((node.label for node in told.tree.preorder()) for told in train),
    }
    word, label = known["words"].id, known["labels"].id

    def encode(told: Told[str]) -> Told[int]:
        return Told([word(w) for w in told.words], told.tree.map(label))

    return Dataset(data, [encode(t) for t in train], [encode(t) for t in dev], known, {**count_lengths(known), **sizes})


def load_texts(data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None) -> Dataset:
    """Load sentences without tags, as lists of the ids of their words; arguments are those of `Load`.

    Raises:
        DataError: there is no such data, or it is malformed.
    """
    train, dev, sizes = TEXTS.find(data, rng)
    known = vocabularies or {"words": count_words(train)}
    word = known["words"].id
    train, dev = ([[word(w) for w in text] for text in part] for part in (train, dev))
    return Dataset(data, train, dev, known, {**count_lengths(known), **sizes})


def count_words(words: Iterable[Iterable[str]], min_count: int = MIN_COUNT) -> Vocabulary:
    """Collect the words of training instances that occur often enough."""
    return Vocabulary.count(chain.from_iterable(words), min_count)


def count_lengths(vocabularies: Mapping[str, Vocabulary]) -> dict[str, int]:
    """Give the sizes that a model needs to know of vocabularies: `n_words` of "words"."""
    return {f"n_{name}": len(vocabulary) for name, vocabulary in vocabularies.items()}


def _hold_out(instances: list[Any], one_in: int) -> tuple[list[Any], list[Any]]:
    n_train = len(instances) - len(instances) // one_in
    return instances[:n_train], instances[n_train:]
