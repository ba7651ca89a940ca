"""The models, each with its PyTorch twin and instances; add a case for each new model.

Models that await values have separate cases: tests of backends cover the kinds of their losses elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain

import numpy as np

from autobatch.models.bilstm_tagger import BiLSTMCharTagger, BiLSTMCRF, BiLSTMTagger
from autobatch.models.data import brackets
from autobatch.models.data.agreement import draw_texts
from autobatch.models.data.dag import draw_dags, draw_lattices, draw_named_lattices
from autobatch.models.data.lattice import Lattice
from autobatch.models.data.listops import N_CLASSES
from autobatch.models.data.ordered_tree import DescribedTree, OrderedTree, draw_commands
from autobatch.models.data.pair import Pair, draw_pairs, make_pair
from autobatch.models.data.sentence import Sentence, SpelledSentence, draw_rare_names, draw_sentences
from autobatch.models.data.tree import Tree
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.models.doubly_recurrent import DoublyRecurrent
from autobatch.models.early_exit import EarlyExit
from autobatch.models.lattice_lstm_ner import LatticeLSTMNER
from autobatch.models.lattice_tagger import LatticeGRU, LatticeLSTM, LatticeTagger
from autobatch.models.lstm_lm import LSTMLM
from autobatch.models.seq2seq import LSTMNMT, LSTMNMTAttention, Seq2Seq, Translator
from autobatch.models.stack_lstm_parser import StackLSTMParser
from autobatch.models.tree_lstm import TreeLSTM, TwoTypeTree, TwoTypeTreeLSTM, draw_kinds
from helpers.twins import (
    bilstm_char_tagger,
    bilstm_tagger,
    doubly_recurrent,
    early_exit,
    graph_cases,
    lstm_lm,
    lstm_nmt,
    lstm_nmt_attention,
    seq2seq,
    stack_lstm_parser,
    tree_cases,
)
from helpers.twins.bilstm_char_tagger import BiLSTMCharTaggerTwin
from helpers.twins.bilstm_crf import BiLSTMCRFTwin
from helpers.twins.bilstm_tagger import BiLSTMTaggerTwin
from helpers.twins.case import Case as Case
from helpers.twins.doubly_recurrent import DoublyRecurrentTwin
from helpers.twins.early_exit import EarlyExitTwin
from helpers.twins.lattice_gru import LatticeGRUTwin
from helpers.twins.lattice_lstm import LatticeLSTMTwin
from helpers.twins.lattice_lstm_ner import LatticeLSTMNERTwin
from helpers.twins.lstm_lm import LSTMLMTwin
from helpers.twins.lstm_nmt import LSTMNMTTwin
from helpers.twins.lstm_nmt_attention import LSTMNMTAttentionTwin
from helpers.twins.seq2seq import Seq2SeqTwin
from helpers.twins.stack_lstm_parser import StackLSTMParserTwin
from helpers.twins.tree_lstm import TreeLSTMTwin
from helpers.twins.tree_lstm_2type import TwoTypeTreeLSTMTwin

draw_trees_case = partial(tree_cases.draw_listops_case, make=TreeLSTM)


def draw_two_type_case(seed: int, n_instances: int, dim: int) -> tuple[TwoTypeTreeLSTM, list[TwoTypeTree]]:
    """Draw trees whose inner nodes are each of one of two kinds."""
    sizes, trees = draw_trees_case(seed, n_instances, dim)
    model = TwoTypeTreeLSTM(len(sizes.embedding.data), dim, N_CLASSES, np.random.default_rng(seed))
    return model.astype("float64"), [TwoTypeTree(tree, draw_kinds(tree, seed)) for tree in trees]


def draw_sentences_case(
    seed: int, n_instances: int, dim: int, n_layers: int = 1, model: type[BiLSTMTagger] = BiLSTMTagger
) -> tuple[BiLSTMTagger, list[Sentence[int]]]:
    """Draw sentences, one of which is a single word."""
    rng = np.random.default_rng(seed)
    drawn = [Sentence(["song"], ["O"]), *draw_sentences(n_instances - 1, rng)]
    words = Vocabulary.count(word for sentence in drawn for word in sentence.words)
    tags = Vocabulary.count(tag for sentence in drawn for tag in sentence.tags)
    encoded = [Sentence(list(map(words.id, s.words)), list(map(tags.id, s.tags))) for s in drawn]
    return model(len(words), len(tags), dim, rng, n_layers).astype("float64"), encoded


def draw_spelled_case(seed: int, n_instances: int, dim: int) -> tuple[BiLSTMCharTagger, list[SpelledSentence]]:
    """Draw words of which half are spelled, one of them by a single character."""
    rng = np.random.default_rng(seed)
    drawn = [Sentence(["a"], ["O"]), *draw_rare_names(n_instances - 1, rng, max_parts=3)]
    characters = Vocabulary.count([x for sentence in drawn for word in sentence.words for x in word], min_count=3)
    tags = Vocabulary.count(tag for sentence in drawn for tag in sentence.tags)

    def read(word: str) -> int | list[int]:
        return len(word) % 5 if len(word) % 2 == 0 else list(map(characters.id, word))

    encoded = [SpelledSentence(list(map(read, s.words)), list(map(tags.id, s.tags))) for s in drawn]
    return BiLSTMCharTagger(5, len(characters), len(tags), dim, rng).astype("float64"), encoded


def draw_lattices_case(
    seed: int, n_instances: int, dim: int, model: Callable[..., LatticeTagger] = LatticeLSTM
) -> tuple[LatticeTagger, list[Lattice[int]]]:
    """Draw lattices of both kinds, the first without a position to tag; rare words are unknown."""
    rng = np.random.default_rng(seed)
    half = n_instances // 2
    drawn = [Lattice(["0"], [[]]), *draw_lattices(half - 1, rng), *draw_dags(n_instances - half, rng, max_nodes=10)]
    encoded, sizes = encode_lattices(drawn)
    return model(*sizes, dim, rng).astype("float64"), encoded


def draw_names_case(seed: int, n_instances: int, dim: int) -> tuple[LatticeLSTMNER, list[Lattice[int]]]:
    """Draw texts with names, the first of them empty."""
    rng = np.random.default_rng(seed)
    drawn = [Lattice(["0"], [[]]), *draw_named_lattices(n_instances - 1, rng, max_words=4)]
    encoded, sizes = encode_lattices(drawn)
    return LatticeLSTMNER(*sizes, dim, rng).astype("float64"), encoded


def encode_lattices(drawn: list[Lattice[str]]) -> tuple[list[Lattice[int]], tuple[int, int, int]]:
    """Replace characters, words and tags by ids; also return how many there are of each."""
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
    return encoded, (len(characters), len(words), len(tags))


def draw_texts_case(seed: int, n_instances: int, dim: int) -> tuple[LSTMLM, list[list[int]]]:
    """Draw sentences, one of them empty; rare words are unknown."""
    rng = np.random.default_rng(seed)
    drawn = [list[str](), *draw_texts(n_instances - 1, rng)]
    words = Vocabulary.count(chain.from_iterable(drawn), min_count=2)
    return LSTMLM(len(words), dim, rng).astype("float64"), [list(map(words.id, text)) for text in drawn]


def draw_pairs_case(
    seed: int, n_instances: int, dim: int, model: Callable[..., Translator] = Seq2Seq
) -> tuple[Translator, list[Pair[int]]]:
    """Draw pairs, one of them empty; rare words are unknown."""
    rng = np.random.default_rng(seed)
    drawn = [make_pair("", ""), *draw_pairs(n_instances - 1, rng)]
    source = Vocabulary.count(chain.from_iterable(pair.source for pair in drawn), min_count=2)
    target = Vocabulary.count(chain.from_iterable(pair.target for pair in drawn), min_count=2)
    return model(len(source), len(target), dim, rng).astype("float64"), [
        Pair(list(map(source.id, pair.source)), list(map(target.id, pair.target)), pair.reference) for pair in drawn
    ]


def draw_brackets_case(seed: int, n_instances: int, dim: int) -> tuple[StackLSTMParser, list[Tree[int]]]:
    """Draw trees, one of them a single leaf, which is built by shifts only."""
    rng = np.random.default_rng(seed)
    drawn = [Tree.leaf(brackets.WORD, "a"), *brackets.draw_brackets(n_instances - 1, rng, max_depth=3)]
    vocabulary = Vocabulary.count(word for tree in drawn for word in tree.words())
    model = StackLSTMParser(len(vocabulary), brackets.N_CLASSES, dim, rng).astype("float64")
    return model, [vocabulary.encode(tree) for tree in drawn]


def draw_commands_case(seed: int, n_instances: int, dim: int) -> tuple[DoublyRecurrent, list[DescribedTree[int]]]:
    """Draw texts and trees, one pair of them an empty text and a single node."""
    rng = np.random.default_rng(seed)
    drawn = [DescribedTree[str]([], OrderedTree("do")), *draw_commands(n_instances - 1, rng)]
    words = Vocabulary.count(word for one in drawn for word in one.words)
    labels = Vocabulary.count(node.label for one in drawn for node in one.tree.preorder())
    model = DoublyRecurrent(len(words), len(labels), dim, rng).astype("float64")
    return model, [DescribedTree(list(map(words.id, one.words)), one.tree.map(labels.id)) for one in drawn]


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
"""Models with all kinds of cells and graphs; the tests of all stages and backends run them."""

MORE = [
    *tree_cases.MORE,
    Case("bilstm-char-tagger", draw_spelled_case, BiLSTMCharTaggerTwin.with_state, bilstm_char_tagger.name_in_twin),
    Case(
        "bilstm-crf",
        partial(draw_sentences_case, model=BiLSTMCRF),
        BiLSTMCRFTwin.with_state,
        bilstm_tagger.name_in_twin,
    ),
    Case("lattice-gru", partial(draw_lattices_case, model=LatticeGRU), LatticeGRUTwin.with_state),
    Case("lattice-lstm-ner", draw_names_case, LatticeLSTMNERTwin.with_state),
    Case("lstm-lm", draw_texts_case, LSTMLMTwin.with_state, lstm_lm.name_in_twin),
    *graph_cases.CASES,
]
"""Models similar to those of `CASES`, which are tested end to end on all backends."""

AWAITING = [
    Case("seq2seq", draw_pairs_case, Seq2SeqTwin.with_state, seq2seq.name_in_twin),
    Case(
        "early-exit",
        partial(tree_cases.draw_reviews_case, make=EarlyExit),
        EarlyExitTwin.with_state,
        early_exit.name_in_twin,
    ),
    Case("lstm-nmt", partial(draw_pairs_case, model=LSTMNMT), LSTMNMTTwin.with_state, lstm_nmt.name_in_twin),
    Case(
        "lstm-nmt-attention",
        partial(draw_pairs_case, model=LSTMNMTAttention),
        LSTMNMTAttentionTwin.with_state,
        lstm_nmt_attention.name_in_twin,
    ),
    Case("stack-lstm-parser", draw_brackets_case, StackLSTMParserTwin.with_state, stack_lstm_parser.name_in_twin),
    Case("doubly-recurrent", draw_commands_case, DoublyRecurrentTwin.with_state, doubly_recurrent.name_in_twin),
]
