"""Load data by name (a generator, a file or a folder), and encode it for a model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from autobatch.errors import DataError
from autobatch.keywords import nearest
from autobatch.models.data import (
    agreement,
    brackets,
    circuit,
    comparison,
    dag,
    force_field,
    listops,
    molecule,
    ordered_tree,
    picture,
    python_ast,
    repeats,
    reviews,
    sentence,
    sst,
)
from autobatch.models.data.circuit import Circuit, read_circuits
from autobatch.models.data.comparison import Comparison, read_comparisons
from autobatch.models.data.conformation import Conformation, read_conformations
from autobatch.models.data.labelled_tree import LabelledTree, read_labelled_trees
from autobatch.models.data.lattice import NAMES, Lattice, read_lattices
from autobatch.models.data.molecule import Molecule, read_molecules
from autobatch.models.data.ordered_tree import DescribedTree, read_described_trees
from autobatch.models.data.pair import Pair, draw_pairs, find_translations, read_pairs
from autobatch.models.data.picture import Picture, read_pictures
from autobatch.models.data.repeats import Repeats, read_repeats
from autobatch.models.data.sentence import Sentence, read_sentences, read_texts
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary, Words
from autobatch.readers.vocabulary import MOST_SHOWN

N_DRAWN = 4500  # training and development instances of a generator
HELD_OUT_OF_DRAWN = 9  # the last 1/9 of drawn instances is development data
SHARE = 0.1  # of a single file, drawn as development data
LABELS = {"classes", "labels", "tags"}  # the vocabularies of single labels
MIN_COUNT_READ_WHOLE = 6  # models that read characters spell rarer words


@dataclass(frozen=True)
class Dataset:
    """Training and development instances."""

    name: str
    train: Sequence[Any]
    dev: Sequence[Any]
    vocabularies: Mapping[str, Vocabulary]
    """The vocabularies of the encoding by name, such as "words", "characters" or "tags"."""
    sizes: Mapping[str, int]
    """The sizes needed by models of the data, by constructor parameter: `n_words`, `n_tags`, `n_classes`."""
    dev_places: Sequence[int] | None = None
    """Indices of the `dev` instances among all `items`, ascending; None if they follow those of `train`."""
    digest: str = ""
    """SHA-256 of the files of the training data; "" if it was drawn, or is unknown."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """`target_mean` and `target_std`, for models that standardise the numbers that they predict; empty for others."""
    dev_digest: str = ""
    """SHA-256 of the files of the development data; "" if it is part of the training data, or is unknown."""

    @property
    def items(self) -> list[Any]:
        """Return all instances, in file order."""
        if self.dev_places is None:
            return [*self.train, *self.dev]
        train, dev, places = iter(self.train), iter(self.dev), set(self.dev_places)
        return [next(dev if place in places else train) for place in range(len(self.train) + len(self.dev))]

    def hold_out_the_last(self) -> Dataset:
        """Return the data with the last 10% as development data, the split of version 0.2 for a single file."""
        items = self.items
        n_train = len(items) - len(items) // 10
        return replace(self, train=items[:n_train], dev=items[n_train:], dev_places=None)


class Load(Protocol):
    """Loads data by name, encoded by the given vocabularies, or else by those of its training instances."""

    def __call__(
        self, data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None, /
    ) -> Dataset:
        """Load data by name; `rng` draws a generator's instances."""


@dataclass(frozen=True)
class Generator:
    """A generator: `draw(n_instances, rng)` draws instances, perhaps fewer; `sizes` are those of a `Dataset`."""

    summary: str
    draw: Callable[[int, np.random.Generator], list[Any]]
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A format of instances: the reader of files, and the generators."""

    reads: str
    read: Callable[[Path, bool], list[Any]]
    """Reads a file; the second argument is whether answers (tags, labels or target numbers) are required."""
    generators: Mapping[str, Generator]
    parts: tuple[str, str] = ("train.txt", "dev.txt")
    """The files of a folder."""
    beside: Callable[[Path], Sequence[Path]] = lambda path: ()
    """Returns additional files that are read with a file, if they exist."""

    def find(
        self,
        data: str,
        rng: np.random.Generator,
        answered: bool,
        trains: bool = True,
        dev: str | None = None,
        share: float | None = None,
    ) -> Found:
        """Draw or read training and development instances.

        Args:
            data: name of a generator, or a path.
            rng: draws instances, or the development data of a single file.
            answered: whether instances in files must have answers.
            trains: whether a folder must have training instances.
            dev: path of the development data; no other instances are then held out or read as such.
            share: share of a single file that is development data; by default `SHARE`.

        Raises:
            DataError: the data is missing or malformed; or `share` is given for a folder or a generator, or is less
                than one instance.
        """
        if share is not None and (data in self.generators or os.path.isdir(data)):
            raise DataError(
                f"cannot hold out {share:g} of {data!r}: only a single file is split, and a folder or a generator has "
                f"development data of its own; leave out the share."
            )
        if generator := self.generators.get(data):
            drawn = generator.draw(N_DRAWN, rng)
            if dev is not None:
                return Found(drawn, self.read(Path(dev), answered), None, generator.sizes)
            n_train = len(drawn) - len(drawn) // HELD_OUT_OF_DRAWN
            return Found(drawn[:n_train], drawn[n_train:], None, generator.sizes)
        path = Path(data)
        if os.path.isdir(path):
            train_file, dev_file = self.parts
            needs_train = trains or (path / train_file).exists()
            train = self.read(path / train_file, answered) if needs_train else []
            return Found(train, self.read(path / dev_file if dev is None else Path(dev), answered))
        if not os.path.exists(path):
            meant = nearest(data, self.generators)
            reason = "no such file, folder or generator"
            if data in GENERATORS:
                meant, reason = None, "that generator does not fit the model"
            raise DataError(
                f"cannot load data {data!r}: {reason}; {f'did you mean {meant}? Otherwise ' if meant else ''}give a "
                f"path, or one of: {', '.join(self.generators)}."
            )
        read = self.read(path, answered)
        if dev is not None:
            return Found(read, self.read(Path(dev), answered))
        return hold_out(read, data, rng, share)

    def digest(self, data: str, part: int = 0) -> str:
        """Compute `Dataset.digest` of existing data, or of a folder's file with this number in `parts`."""
        path = Path(data)
        if data in self.generators or (part and not path.is_dir()):
            return ""
        file = path / self.parts[part] if path.is_dir() else path
        contents = [one.read_bytes() for one in (file, *self.beside(file)) if one.is_file()]
        # A hash of hashes, which changes if text moves from one file to another.
        return sha256(b"".join(sha256(content).digest() for content in contents)).hexdigest()


class Found(NamedTuple):
    """Instances before they are encoded; `dev_places` and `sizes` are those of a `Dataset`."""

    train: list[Any]
    dev: list[Any]
    dev_places: list[int] | None = None
    sizes: Mapping[str, int] = {}


def hold_out(read: Sequence[Any], data: str, rng: np.random.Generator, share: float | None = None) -> Found:
    """Hold out a random share of the instances of a file, by default `SHARE`, as development data.

    Raises:
        DataError: a given share is less than one instance; the message names `data`.
    """
    # Exact, as the share was written: in floats, 0.29 * 100 is below 29.
    n_dev = int(Decimal(str(SHARE if share is None else share)) * len(read))
    if share is not None and not n_dev:
        raise DataError(
            f"cannot hold out {share:g} of {data!r}: that is less than one of its {len(read)} instances; give a larger "
            f"share."
        )
    places = sorted(rng.permutation(len(read))[:n_dev].tolist())
    held_out = set(places)
    train = [instance for place, instance in enumerate(read) if place not in held_out]
    return Found(train, [read[place] for place in places], places)


@dataclass(frozen=True)
class Loader:
    """A `Load` of the instances of a format.

    Attributes:
        form: the format.
        words: the source of each vocabulary, by its name in `Dataset.vocabularies`.
        encode: `encode(instance, *ids)` returns the instance with ids in place of words; `ids` are functions from a
            word to its id, one per vocabulary.
        finish: changes or checks the encoded data.
        answered: whether instances in files must have answers.
        dev, share: source of the development data, as for `Format.find`.
    """

    form: Format
    words: Mapping[str, Words]
    encode: Callable[..., Any]
    finish: Callable[[Dataset, np.random.Generator], Dataset] = lambda dataset, rng: dataset
    answered: bool = True
    dev: str | None = None
    share: float | None = None

    @property
    def inputs(self) -> Loader:
        """Return the same loader for prediction inputs, whose files need no answers."""
        return replace(self, answered=False)

    def __call__(
        self, data: str, rng: np.random.Generator, vocabularies: Mapping[str, Vocabulary] | None = None, /
    ) -> Dataset:
        """Load and encode data by name.

        Raises:
            DataError: the data is missing or malformed, or training instances have no words for a vocabulary.
        """
        found = self.form.find(data, rng, self.answered, vocabularies is None, self.dev, self.share)
        known = vocabularies or {
            name: words.collect(found.train, found.sizes.get(f"n_{name}")) for name, words in self.words.items()
        }
        for name, words in self.words.items():
            # Only vocabularies of answers have a `min_count` of 1, and training needs answers.
            if words.min_count == 1 and not known[name].words and vocabularies is None:
                raise DataError(f"cannot train on {data!r}: its {len(found.train)} training instances lack {name}.")
        # The development data has files of its own, which may have other labels.
        if vocabularies is None and found.dev_places is None and data not in self.form.generators:
            self._warn_of_new_labels(self.dev or data, found.dev, known)
        ids = [known[name].id for name in self.words]
        train, dev = ([self.encode(instance, *ids) for instance in part] for part in (found.train, found.dev))
        sizes = {f"n_{name}": len(known[name]) for name in known}
        dataset = Dataset(data, train, dev, known, sizes, found.dev_places)
        if self.answered:
            measured = self.form.digest(data, part=1) if self.dev is None else self.form.digest(self.dev)
            dataset = replace(dataset, digest=self.form.digest(data), dev_digest=measured)
        return self.finish(dataset, rng)

    def _warn_of_new_labels(self, data: str, dev: Sequence[Any], known: Mapping[str, Vocabulary]) -> None:
        """Warn about labels of the development data that the training data lacks."""
        for name in LABELS & self.words.keys():
            new = sorted({word for instance in dev for word in self.words[name].of(instance)} - {*known[name].words})
            if new:
                shown = ", ".join(map(repr, new[:MOST_SHOWN])) + ", ..." * (len(new) > MOST_SHOWN)
                warnings.warn(
                    f"the development data of {data} has labels that the training data lacks, and that are never "
                    f"predicted: {shown}.",
                    stacklevel=3,
                )


TREES = Format(
    reads="labelled binary trees, one per line: (3 (2 good) (2 film)) or (NP (DT the) (NN film)); a file, or a folder "
    "with train.txt and dev.txt",
    read=sst.read_trees,
    generators={
        "listops": Generator(
            "nested list operations such as [MAX 2 9 [MIN 4 7] 0], labelled with their values 0 to 9",
            listops.draw_trees,
            {"n_classes": listops.N_CLASSES},
        ),
        "python-ast": Generator(
            "functions of this Python's standard library as trees, labelled with the first words of their names",
            python_ast.draw_trees,
            {"n_classes": python_ast.N_CLASSES},
        ),
        "reviews": Generator(
            "reviews whose opinion is in a few of their words, as left-branching trees",
            reviews.draw_reviews,
            {"n_classes": reviews.N_CLASSES},
        ),
        "brackets": Generator(
            "nested lists and sets of letters, which end with the same word",
            brackets.draw_brackets,
            {"n_classes": brackets.N_CLASSES},
        ),
    },
)
TEXTS_OF_TREES = replace(TREES, read=sst.read_texts_of_trees)
"""The same files, for models that read only the words of a tree."""
LABELLED_TREES = Format(
    reads='trees of any shape, one per line, in JSON: {"word": "MAX", "label": "9", "children": [{"word": "2"}, ...]}, '
    "or in brackets: (NP (DT the) (JJ old) (NN film)); a file, or a folder with train.jsonl and dev.jsonl",
    read=lambda path, answered: read_labelled_trees(path),
    generators={
        "operations": Generator(
            "nested list operations as in listops, with all arguments as children of their operator",
            listops.draw_operations,
        ),
        "functions": Generator(
            "functions as in python-ast, with all parts of a construct as its children", python_ast.draw_functions
        ),
    },
    parts=("train.jsonl", "dev.jsonl"),
)
SENTENCES = Format(
    reads="tagged sentences, one per line: Paris|I-LOC is|O; a file, or a folder with train.txt and dev.txt",
    read=read_sentences,
    generators={
        "tagging": Generator("sentences of a made-up language with people, places and groups", sentence.draw_sentences),
        "rare-names": Generator(
            "the same with rare names, whose types follow from their endings", sentence.draw_rare_names
        ),
    },
)
LATTICES = Format(
    reads="lattices of characters and words as numbers, with tags; a file, or a folder with train.txt and dev.txt; "
    "tags are names, or numbers with optional names in a file tags.txt beside it, a number and a name per line",
    read=read_lattices,
    generators={
        "lattices": Generator("texts without spaces, with all possible words, tagged by words", dag.draw_lattices),
        "lattice-names": Generator(
            "the same, with names of people, places and groups among the words", dag.draw_named_lattices
        ),
        "random-dag": Generator("random graphs, each node tagged with its longest path from the start", dag.draw_dags),
    },
    beside=lambda path: [path.with_name(NAMES)],
)
PICTURES = Format(
    reads="pictures of tagged pixels, one row per line: blue|sky red|boat, separated by blank lines; a file, or a "
    "folder with train.txt and dev.txt",
    read=read_pictures,
    generators={"scenes": Generator("sky over sea and land, in ambiguous colours", picture.draw_scenes)},
)
PAIRS = Format(
    reads="sentences with translations on the same lines of another file: a folder with train.en and dev.en, or one "
    "file; beside each, a file that differs only in the suffix, such as train.vi",
    read=read_pairs,
    generators={
        "translation": Generator("sentences of a small language, with translations in another word order", draw_pairs)
    },
    parts=("train.en", "dev.en"),
    beside=find_translations,
)
DESCRIBED_TREES = Format(
    reads="a text, a tab and a tree per line: turn around<tab>(do (turn left left)); a file, or a folder with "
    "train.txt and dev.txt",
    read=read_described_trees,
    generators={
        "commands": Generator("commands of a few words, and trees of the described actions", ordered_tree.draw_commands)
    },
)
TEXTS = Format(
    reads="sentences without tags, one per line: the key falls; a file, or a folder with train.txt and dev.txt",
    read=lambda path, answered: read_texts(path),
    generators={
        "agreement": Generator("sentences whose verb agrees with a possibly distant noun", agreement.draw_texts)
    },
)
MOLECULES = Format(
    reads="molecules in SMILES, one per line with a number to predict: CC(=O)O -4.48; a file, or a folder with "
    "train.txt and dev.txt",
    read=read_molecules,
    generators={
        "compounds": Generator(
            "small organic molecules with heats of formation computed from their bonds and rings",
            molecule.draw_compounds,
        )
    },
)
CONFORMATIONS = Format(
    reads="molecules in space with energies and forces, in the extended XYZ format; a file, or a folder with train.xyz "
    "and dev.xyz",
    read=read_conformations,
    generators={
        "force-field": Generator(
            "molecules of 5 to 20 atoms in space, with the energy and the forces of a small force field",
            force_field.draw_conformations,
        )
    },
    parts=("train.xyz", "dev.xyz"),
)
COMPARISONS = Format(
    reads="two texts and a label per line, separated by tabs: a cat<tab>an animal<tab>yes; a file, or a folder with "
    "train.txt and dev.txt",
    read=read_comparisons,
    generators={"edits": Generator("pairs of spelled words, labelled with their edit distance", comparison.draw_edits)},
)
REPEATS = Format(
    reads="words with counts and tags, one text per line: right*3|F left*1|E; a file, or a folder with train.txt and "
    "dev.txt",
    read=read_repeats,
    generators={"moves": Generator("walks around six seats, tagged with the seat after each move", repeats.draw_moves)},
)
CIRCUITS = Format(
    reads="graphs, one per line, of nodes with inputs and tags: true()|1 not(0)|0; a file, or a folder with "
    "train.txt and dev.txt",
    read=read_circuits,
    generators={
        "circuits": Generator("random circuits of logic gates, tagged with their values", circuit.draw_circuits)
    },
)
FORMATS = (
    TREES, LABELLED_TREES, SENTENCES, LATTICES, PICTURES, PAIRS, DESCRIBED_TREES, TEXTS, MOLECULES,
    CONFORMATIONS, COMPARISONS, REPEATS, CIRCUITS,
)  # fmt: skip
GENERATORS: Mapping[str, Generator] = dict(chain.from_iterable(form.generators.items() for form in FORMATS))


load_trees = Loader(
    TREES,
    {"words": Words(Tree.words), "classes": Words(Tree.labels, min_count=1, closed=True)},
    lambda tree, word, label: tree.map(word, lambda found: label(str(found))),
)
load_texts_of_trees = replace(load_trees, form=TEXTS_OF_TREES)
load_labelled_trees = Loader(
    LABELLED_TREES,
    {
        "words": Words(lambda tree: (node.word for node in tree.postorder())),
        "labels": Words(lambda tree: (node.label for node in tree.postorder() if node.label is not None), min_count=1),
    },
    LabelledTree.map,
)
load_sentences = Loader(
    SENTENCES,
    {"words": Words(lambda x: x.words), "tags": Words(lambda x: x.tags, min_count=1)},
    Sentence.map,
)
load_spelled_sentences = Loader(
    SENTENCES,
    {
        "words": Words(lambda x: x.words, MIN_COUNT_READ_WHOLE),
        "characters": Words(lambda x: chain.from_iterable(x.words)),
        "tags": Words(lambda x: x.tags, min_count=1),
    },
    Sentence.spell,
)
"""Words with fewer than 6 uses are spelled by characters."""
load_lattices = Loader(
    LATTICES,
    {
        "characters": Words(Lattice.characters),
        "words": Words(Lattice.words),
        "tags": Words(lambda lattice: lattice.tags[1:], min_count=1),
    },
    Lattice.map,
)
load_pictures = Loader(PICTURES, {"words": Words(Picture.words), "tags": Words(Picture.tags, min_count=1)}, Picture.map)
load_pairs = Loader(
    PAIRS,
    {"source_words": Words(lambda pair: pair.source), "target_words": Words(lambda pair: pair.target)},
    lambda pair, source, target: Pair(list(map(source, pair.source)), list(map(target, pair.target)), pair.reference),
)
load_described_trees = Loader(
    DESCRIBED_TREES,
    {
        "words": Words(lambda described: described.words),
        "labels": Words(lambda described: (node.label for node in described.tree.preorder()), min_count=1),
    },
    lambda x, word, label: DescribedTree(list(map(word, x.words)), None if x.tree is None else x.tree.map(label)),
)
load_texts = Loader(TEXTS, {"words": Words(lambda text: text)}, lambda text, word: list(map(word, text)))
load_molecules = Loader(
    MOLECULES,
    {"atoms": Words(lambda x: x.atoms), "bonds": Words(lambda x: (bond for _, _, bond in x.bonds))},
    Molecule.map,
)
load_conformations = Loader(CONFORMATIONS, {"elements": Words(lambda x: x.elements)}, Conformation.map)
load_comparisons = Loader(
    COMPARISONS,
    {"words": Words(lambda pair: (*pair.left, *pair.right)), "classes": Words(lambda pair: [pair.label], min_count=1)},
    lambda x, word, label: Comparison(
        list(map(word, x.left)), list(map(word, x.right)), None if x.label is None else label(x.label)
    ),
)
load_repeats = Loader(
    REPEATS,
    {"words": Words(lambda x: x.words), "tags": Words(lambda x: x.tags, min_count=1)},
    lambda x, word, tag: Repeats(list(map(word, x.words)), x.counts, list(map(tag, x.tags))),
)
load_circuits = Loader(
    CIRCUITS,
    {"kinds": Words(lambda x: x.kinds), "tags": Words(lambda x: x.tags, min_count=1)},
    lambda x, kind, tag: Circuit(list(map(kind, x.kinds)), x.inputs, list(map(tag, x.tags))),
)
