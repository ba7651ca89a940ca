"""Draw lattices, which are texts with all their possible words, and random directed acyclic graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autobatch.models.data.lattice import Lattice

LETTERS = "abcdefgh"
N_DEPTHS = 6
_LEXICON_SEED = 0  # every data set has the same language; `rng` draws the texts
_WORDS_PER_LENGTH = 24
KINDS = ("PER", "LOC", "ORG")
_NAMED = 2 * len(KINDS)  # one word in this many, on average, is a name of a given kind


def draw_lattices(n_lattices: int, rng: np.random.Generator, *, max_words: int = 5) -> list[Lattice[str]]:
    """Draw texts of a made-up language without spaces, with an arc for every possible word.

    A text is 1 to `max_words` words, each a single letter or one of 72 words of 2 to 4 letters. A position is tagged B,
    M or E if a word of the text begins, continues or ends there, and S if it is a single letter. Words of the language
    also occur by chance, so that arcs alone do not determine the tags.

    Returns:
        Lattices of about 9 positions and 12 arcs on average, by default; words on arcs are spelled out.

    >>> print(draw_lattices(1, np.random.default_rng(0), max_words=2)[0])
    5
    0 B M E S
    0
    1 0 g
    2 1 f 0 gf
    2 2 b 0 gfb
    1 3 a
    """
    lexicon = _make_lexicon()
    return [_draw_lattice(rng, lexicon, max_words, _tag_word) for _ in range(n_lattices)]


def draw_named_lattices(n_lattices: int, rng: np.random.Generator, *, max_words: int = 8) -> list[Lattice[str]]:
    """Draw texts of the same language, where half of the words are names of people, places or groups.

    The characters of a name are tagged B-PER, I-PER and E-PER; other words and single letters are tagged O. Names also
    occur by chance across drawn words, and are then not tagged.

    >>> print(draw_named_lattices(1, np.random.default_rng(0), max_words=2)[0])
    5
    0 O O O O
    0
    1 0 g
    2 1 f 0 gf
    2 2 b 0 gfb
    1 3 a
    """
    lexicon = _make_lexicon()
    kinds = {word: KINDS[number % _NAMED] for number, word in enumerate(lexicon) if number % _NAMED < len(KINDS)}

    def tag_word(word: str) -> list[str]:
        if word not in kinds:
            return ["O"] * len(word)
        return [f"{place}-{kinds[word]}" for place in ("B", *"I" * (len(word) - 2), "E")]

    return [_draw_lattice(rng, lexicon, max_words, tag_word) for _ in range(n_lattices)]


def draw_dags(n_dags: int, rng: np.random.Generator, *, max_nodes: int = 16, max_arcs: int = 3) -> list[Lattice[str]]:
    """Draw directed acyclic graphs, as lattices whose arcs come from any earlier nodes.

    A graph has 2 to `max_nodes` nodes. Each but the first has 1 to `max_arcs` arcs from distinct earlier nodes, with
    random letters. The tag of a node is the length of its longest path from the first node, modulo 6.

    >>> print(draw_dags(1, np.random.default_rng(1), max_nodes=4)[0])
    3
    0 1 2
    0
    1 0 e
    2 1 b 0 g
    """
    return [_draw_dag(rng, max_nodes, max_arcs) for _ in range(n_dags)]


def _make_lexicon() -> list[str]:
    """Draw 24 different words of each length from 2 to 4."""
    rng = np.random.default_rng(_LEXICON_SEED)
    words: dict[str, None] = {}  # a set in the order of drawing
    for length in (2, 3, 4):
        while len(words) < (length - 1) * _WORDS_PER_LENGTH:
            words["".join(rng.choice(list(LETTERS), length))] = None
    return list(words)


def _draw_lattice(
    rng: np.random.Generator, lexicon: list[str], max_words: int, tag_word: Callable[[str], list[str]]
) -> Lattice[str]:
    text, tags = "", ["0"]
    for _ in range(rng.integers(1, max_words, endpoint=True)):
        letter = rng.random() < 0.25
        word = LETTERS[rng.integers(len(LETTERS))] if letter else lexicon[rng.integers(len(lexicon))]
        text += word
        tags += tag_word(word)
    return Lattice(tags, read_words(text, set(lexicon)))


def _tag_word(word: str) -> list[str]:
    return ["B", *"M" * (len(word) - 2), "E"] if len(word) > 1 else ["S"]


def read_words(text: str, lexicon: set[str]) -> list[list[tuple[int, str]]]:
    """Return the arcs of a text, as in `Lattice`: one per letter, and one across every word of the lexicon.

    >>> read_words("abc", {"ab", "abc", "ca"})
    [[], [(0, 'a')], [(1, 'b'), (0, 'ab')], [(2, 'c'), (0, 'abc')]]
    """
    longest = max(map(len, lexicon))
    arcs: list[list[tuple[int, str]]] = [[]]
    for end in range(1, len(text) + 1):
        starts = range(max(end - longest, 0), end - 1)  # without the single letter
        words = [(start, text[start:end]) for start in starts if text[start:end] in lexicon]
        arcs.append([(end - 1, text[end - 1]), *words])
    return arcs


def _draw_dag(rng: np.random.Generator, max_nodes: int, max_arcs: int) -> Lattice[str]:
    depths: list[int] = [0]
    arcs: list[list[tuple[int, str]]] = [[]]
    for node in range(1, rng.integers(2, max_nodes, endpoint=True)):
        n_arcs = rng.integers(1, min(node, max_arcs), endpoint=True)
        starts = sorted(rng.choice(node, n_arcs, replace=False).tolist(), reverse=True)
        arcs.append([(start, LETTERS[rng.integers(len(LETTERS))]) for start in starts])
        depths.append(1 + max(depths[start] for start in starts))
    return Lattice(["0", *(str(depth % N_DEPTHS) for depth in depths[1:])], arcs)
