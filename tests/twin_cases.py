"""The models, each with its PyTorch twin and instances to compare them on: a new model is a new case.

Models that await values are cases of their own: their losses are of kinds that backends are tested on elsewhere.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

import numpy as np

import graph_cases
import tree_cases
from autobatch.models.bilstm_tagger import BiLSTMTagger
from autobatch.models.data import brackets
from autobatch.models.data.commands import draw_commands
from autobatch.models.data.dag import draw_dags, draw_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.listops import N_CLASSES
from autobatch.models.data.ordered_tree import OrderedTree, Told
from autobatch.models.data.pair import Pair, make_pair
from autobatch.models.data.sentence import Sentence
from autobatch.models.data.tagging import draw_sentences
from autobatch.models.data.translation import draw_pairs
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.doubly_recurrent import DoublyRecurrent
from autobatch.models.early_exit import EarlyExit
from autobatch.models.lattice_lstm import LatticeLSTM
from autobatch.models.seq2seq import Seq2Seq
from autobatch.models.stack_lstm_parser import StackLSTMParser
from autobatch.models.tree_lstm import TreeLSTM
from autobatch.models.tree_lstm_2type import TwoTypeTree, TwoTypeTreeLSTM, draw_kinds
from twin_case import Case as Case
from twins import bilstm_tagger, doubly_recurrent, early_exit, seq2seq, stack_lstm_parser
from twins.bilstm_tagger import BiLSTMTaggerTwin
from twins.doubly_recurrent import DoublyRecurrentTwin
from twins.early_exit import EarlyExitTwin
from twins.lattice_lstm import LatticeLSTMTwin
from twins.seq2seq import Seq2SeqTwin
from twins.stack_lstm_parser import StackLSTMParserTwin
from twins.tree_lstm import TreeLSTMTwin
from twins.tree_lstm_2type import TwoTypeTreeLSTMTwin

draw_trees_case = partial(tree_cases.draw_listops_case, make=TreeLSTM)


def draw_two_type_case(seed: int, n_instances: int, dim: int) -> tuple[TwoTypeTreeLSTM, list[TwoTypeTree]]:
    """The same trees, each of their inner nodes of one of two kinds."""
    sizes, trees = draw_trees_case(seed, n_instances, dim)
    model = TwoTypeTreeLSTM(len(sizes.embedding.data), dim, N_CLASSES, np.random.default_rng(seed))
    return model.astype("float64"), [TwoTypeTree(tree, draw_kinds(tree, seed)) for tree in trees]


def draw_sentences_case(
    seed: int, n_instances: int, dim: int, n_layers: int
) -> tuple[BiLSTMTagger, list[Sentence[int]]]:
    """One of the sentences is a single word."""
    rng = np.random.default_rng(seed)
    drawn = [Sentence(["song"], ["O"]), *draw_sentences(n_instances - 1, rng)]
    words = Vocabulary.count(word for sentence in drawn for word in sentence.words)
    tags = Vocabulary.count(tag for sentence in drawn for tag in sentence.tags)
    model = BiLSTMTagger(len(words), len(tags), dim, rng, n_layers).astype("float64")
    return model, [Sentence(list(map(words.id, s.words)), list(map(tags.id, s.tags))) for s in drawn]


def draw_lattices_case(seed: int, n_instances: int, dim: int) -> tuple[LatticeLSTM, list[Lattice[int]]]:
    """Lattices of both kinds, the first without a position to tag; what is rare is an unknown word."""
    rng = np.random.default_rng(seed)
    half = n_instances // 2
    drawn = [Lattice(["0"], [[]]), *draw_lattices(half - 1, rng), *draw_dags(n_instances - half, rng, max_nodes=10)]
    characters = Vocabulary.count(chain.from_iterable(x.characters() for x in drawn), min_count=2)
    words = Vocabulary.count(chain.from_iterable(x.words() for x in drawn), min_count=2)
    tags = Vocabulary.count(chain.from_iterable(x.tags[1:] for x in drawn))
    encoded = [
        Lattice(
            [tags.id(tag) for tag in x.tags],
            [
                [(start, (characters if start == end - 1 else words).id(word)) for start, word in arcs]
                for end, arcs in enumerate(x.arcs)
            ],
        )
        for x in drawn
    ]
    return LatticeLSTM(len(characters), len(words), len(tags), dim, rng).astype("float64"), encoded


def draw_pairs_case(seed: int, n_instances: int, dim: int) -> tuple[Seq2Seq, list[Pair[int]]]:
    """One of the pairs is empty; what is rare is an unknown word."""
    rng = np.random.default_rng(seed)
    drawn = [make_pair("", ""), *draw_pairs(n_instances - 1, rng)]
    source = Vocabulary.count(chain.from_iterable(pair.source for pair in drawn), min_count=2)
    target = Vocabulary.count(chain.from_iterable(pair.target for pair in drawn), min_count=2)
    model = Seq2Seq(len(source), len(target), dim, rng).astype("float64")
    return model, [
        Pair(list(map(source.id, pair.source)), list(map(target.id, pair.target)), pair.reference) for pair in drawn
    ]


def draw_brackets_case(seed: int, n_instances: int, dim: int) -> tuple[StackLSTMParser, list[Tree[int]]]:
    """One of the trees is a single leaf, which no action but a shift builds."""
    rng = np.random.default_rng(seed)
    drawn = [Tree.leaf(brackets.WORD, "a"), *brackets.draw_brackets(n_instances - 1, rng, max_depth=3)]
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    model = StackLSTMParser(len(vocabulary), brackets.N_CLASSES, dim, rng).astype("float64")
    return model, [vocabulary.encode(tree) for tree in drawn]


def draw_commands_case(seed: int, n_instances: int, dim: int) -> tuple[DoublyRecurrent, list[Told[int]]]:
    """One of the texts is empty, and its tree is a single node."""
    rng = np.random.default_rng(seed)
    drawn = [Told[str]([], OrderedTree("do")), *draw_commands(n_instances - 1, rng)]
    words = Vocabulary.count(word for told in drawn for word in told.words)
    labels = Vocabulary.count(node.label for told in drawn for node in told.tree.preorder())
    model = DoublyRecurrent(len(words), len(labels), dim, rng).astype("float64")
    return model, [Told(list(map(words.id, told.words)), told.tree.map(labels.id)) for told in drawn]


CASES = [
    Case("tree-lstm", draw_trees_case, TreeLSTMTwin.with_state, place_scores=lambda outputs: outputs[1]),
    Case(
        "tree-lstm-2type", draw_two_type_case, TwoTypeTreeLSTMTwin.with_state, place_scores=lambda outputs: outputs[1]
    ),
    *(
        Case(
            f"bilstm-tagger, {n_layers} layers",
            partial(draw_sentences_case, n_layers=n_layers),
            BiLSTMTaggerTwin.with_state,
            bilstm_tagger.name_in_twin,
        )
        for n_layers in (1, 2)
    ),
    Case("lattice-lstm", draw_lattices_case, LatticeLSTMTwin.with_state),
    *tree_cases.CASES,
]
"""Models whose kinds of cells and graphs the tests of all stages and backends run through."""

MORE = [
    *graph_cases.CASES,
]
"""Models which have much in common with those, and are tested as wholes, on all backends."""

AWAITING = [
    Case("seq2seq", draw_pairs_case, Seq2SeqTwin.with_state, seq2seq.name_in_twin),
    Case(
        "early-exit",
        partial(tree_cases.draw_reviews_case, make=EarlyExit),
        EarlyExitTwin.with_state,
        early_exit.name_in_twin,
    ),
    Case("stack-lstm-parser", draw_brackets_case, StackLSTMParserTwin.with_state, stack_lstm_parser.name_in_twin),
    Case("doubly-recurrent", draw_commands_case, DoublyRecurrentTwin.with_state, doubly_recurrent.name_in_twin),
]
