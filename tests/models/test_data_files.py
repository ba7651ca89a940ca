"""Test the readers of sentences and lattices, and all readers on damaged files: they read or report the place."""

from __future__ import annotations

import gzip
import re
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autobatch.errors import DataError
from autobatch.models.data.labelled_tree import LabelledTree, read_labelled_trees
from autobatch.models.data.lattice import Lattice, read_lattices
from autobatch.models.data.ordered_tree import OrderedTree, read_described_trees
from autobatch.models.data.picture import Picture, read_pictures
from autobatch.models.data.sentence import Sentence, read_sentences
from autobatch.readers.lines import read_lines
from helpers.counters.counting import count_lines
from helpers.data.datasets import SMALL, draw_files, real
from helpers.data.readers import DESCRIBED_TREES, LABELLED, LATTICES, PICTURES, READERS, SENTENCES, Reader
from helpers.runs.ways import each


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a file that many examples overwrite."""
    return tmp_path_factory.mktemp("data") / "data.txt"


def read_or_refuse(reader: Reader, path: Path, content: bytes) -> list[Any] | None:
    """Read a file, or return None if a `DataError` names a place in it."""
    path.write_bytes(content)
    try:
        return reader.read(path)
    except DataError as error:
        message = str(error)
    assert str(path) in message
    if not re.search("the file holds none|gzip", message):
        place = re.search(r"line (\d+), column (\d+): ", message)
        assert place is not None, message
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n" if b"\n" in content else b"\r")
        assert 1 <= int(place[1]) <= len(lines)
        assert 1 <= int(place[2]) <= len(lines[int(place[1]) - 1]) + 1
    return None


def check_reading(name: str, path: Path, content: bytes) -> None:
    """Check that data survives a write and a read, also with a byte order mark and CRLF line ends."""
    reader = READERS[name]
    read = read_or_refuse(reader, path, content)
    if read is not None:
        written = "\ufeff" + reader.write(read).replace("\n", "\r\n") + "\r\n"
        assert read_or_refuse(reader, path, written.encode()) == read


# --- all readers, on any file ---


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", READERS)
@settings(deadline=None)  # writes a file for every example
@given(content=st.binary(max_size=60) | st.text("0123 9|ab()-\n\r\t\u00a0", max_size=60).map(str.encode))
def test_any_bytes_read_or_are_refused(name: str, path: Path, content: bytes) -> None:
    check_reading(name, path, content)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_ends_early_reads_or_is_refused(name: str, path: Path) -> None:
    content = READERS[name].valid.encode()
    for length in range(len(content)):
        check_reading(name, path, content[:length])


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", READERS)
@settings(deadline=None)  # writes a file for every example
@given(data=st.data())
def test_a_changed_file_reads_or_is_refused(name: str, path: Path, data: st.DataObject) -> None:
    content = READERS[name].valid.encode()
    for _ in range(data.draw(st.integers(1, 3))):
        first = data.draw(st.integers(0, len(content)))
        last = data.draw(st.integers(first, min(first + 3, len(content))))
        new = data.draw(st.binary(max_size=2) | st.text("0123459|() \n-", max_size=3).map(str.encode))
        content = content[:first] + new + content[last:]
    check_reading(name, path, content)


@pytest.mark.parametrize("name", READERS)
def test_marks_and_ends_of_lines_of_other_systems_are_read_over(name: str, path: Path) -> None:
    reader = READERS[name]
    path.write_text(reader.valid, encoding="utf-8", newline="\n")
    expected = reader.read(path)
    marked = b"\xef\xbb\xbf" + reader.valid.encode()
    for end in (b"\r\n", b"\r\r\n", b"\r"):
        path.write_bytes(marked.replace(b"\n", end) + 2 * end)
        assert reader.read(path) == expected
    if name != "lattices":  # a file of lattices begins with their number
        path.write_bytes(marked + marked)
        assert reader.read(path) == expected + expected


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("stray", ["\r", "\0", "\ufeff"])
def test_strays_inside_of_a_line_are_refused(name: str, stray: str, path: Path) -> None:
    """Stray line ends, zero bytes of UTF-16 without a mark, and marks in the middle, as in joined files."""
    lines = READERS[name].valid.strip("\n").split("\n")
    rng = np.random.default_rng(0)
    for number, line in enumerate(lines, start=1):
        if len(line) > 1:
            place = int(rng.integers(1, len(line)))
            changed = [*lines[: number - 1], line[:place] + stray + line[place:], *lines[number:]]
            path.write_bytes("\r\n".join([*changed, ""]).encode())
            with pytest.raises(DataError, match=rf"line {number}, column {place + 1}: a (carriage|zero|byte order) "):
                READERS[name].read(path)
    for encoding in ("utf-16-le", "utf-16-be", "utf-16"):
        path.write_bytes("\n".join(lines).encode(encoding))
        with pytest.raises(DataError, match=r"line 1, column \d+: (a zero byte|byte 0x\w\w) .* UTF-8\."):
            READERS[name].read(path)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_text_file_is_refused(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    for missing, reason in ((tmp_path, "is a directory"), (tmp_path / "none.txt", "no such file or directory")):
        with pytest.raises(DataError, match=f"cannot read {name} from .*: {reason}; give a readable text file"):
            reader.read(missing)


@pytest.mark.parametrize("name", READERS)
def test_the_cost_per_line_does_not_grow(name: str, path: Path) -> None:
    part = READERS[name].valid.partition("\n")[2] if name == "lattices" else READERS[name].valid
    costs = []
    for n_parts in (20, 200):
        path.write_text(f"{2 * n_parts}\n" * (name == "lattices") + part * n_parts, encoding="utf-8")
        costs.append(count_lines(READERS[name].read, path))
    assert costs[1] < 10.5 * costs[0]


@pytest.mark.parametrize("name", READERS)
def test_the_cost_per_byte_of_a_long_line_does_not_grow(name: str, path: Path) -> None:
    costs = []
    for n in (100, 1000):
        long = {
            "trees": "(2 (1 a) " * n + "(0 b)" + ")" * n,
            "sentences": "a|O " * n,
            "pictures": "a|O " * n + "\n" + "a|O " * n,
            "texts": "a " * n,
            "texts with trees": "a\t" + "(b (c d) " * n + ")" * n,
            "labelled trees": '{"children": [' + '{"word": "a"}, ' * n + "{}]}",
            "pairs of texts": "a " * n + "\t" + "b " * n + "\tno",
            "repeated words": "a*3|O " * n,
            "circuits": "true()|1 " + "".join(f"not({k})|0 " for k in range(n)),
            "conformations": "1\nenergy=0 " + "a=b " * n + "\nC 0 0 0 0 0 0",
            "molecules": "C" + "(=C1CC1)" * n + " 0",
            "lattices": f"1\n{n}\n{'0 ' * n}\n0\n" + "".join(f"1 {k} 7\n" for k in range(n - 1)),
        }
        path.write_text(long[name])
        costs.append(count_lines(READERS[name].read, path))
    assert costs[1] < 10.5 * costs[0]


def test_lines_are_read_one_at_a_time(path: Path) -> None:
    path.write_bytes(b"first\nsecond \xff\n")
    lines = read_lines(path, "words")
    assert next(lines).text == "first"
    with pytest.raises(DataError, match=r"line 2, column 8: byte 0xff is not UTF-8; convert"):
        next(lines)


# --- trees of any shape, as JSON ---


def test_words_labels_and_children_may_be_left_out(path: Path) -> None:
    path.write_text(LABELLED, encoding="utf-8")
    root = LabelledTree("MAX", [LabelledTree("2 x"), LabelledTree("9", [LabelledTree("")])], "9")
    assert read_labelled_trees(path) == [root, LabelledTree("", label="no"), LabelledTree('"é')]


@each(
    "text, message",
    [
        ('{"word": MAX}', "column 10: expected JSON, such as .* found 'MAX}'"),
        ("[" * 100_000, "column 100001: expected JSON"),
        ("[" * 100_000 + "]" * 100_000, "…; expected an object"),
        (
            '{"children": [' * 50_000 + "7" + "]}" * 50_000,
            "child 1 of (child 1 of ){5}a node 49994 levels below the root is 7; expected an object",
        ),
        ("9" * 5_000, "column 1: expected JSON"),
        ("[]", r"column 1: the root is \[\]; expected an object with"),
        ('  {"text": "a"}', 'column 3: the root is {"text": "a"}; expected an object'),
        ('{"word": "a\\ud800"}', r'word of the root is "a\\ud800"; expected no halves of surrogate pairs'),
        ('{"children": {}}', "column 1: children of the root is {}; expected a list"),
        ('{"children": [{}, {"word": 2.5}]}', "word of child 2 of the root is 2.5; expected a string or an int"),
        ('{"children": [{"children": [{"label": true}]}]}', "label of child 1 of child 1 of the root is true"),
    ],
)
def test_what_is_no_labelled_tree_is_named(path: Path, text: str, message: str) -> None:
    path.write_text("{}\n" + text)
    with pytest.raises(
        DataError, match=f"^cannot read a labelled tree from {re.escape(str(path))}, line 2, .*{message}"
    ):
        read_labelled_trees(path)


# --- sentences ---


def test_a_word_may_hold_the_bar(path: Path) -> None:
    path.write_text(SENTENCES, encoding="utf-8")
    assert read_sentences(path) == [
        Sentence(["010", "is", "a|b", "|", "8\u00a0m"], ["I-MISC", "O", "O", "O", "O"]),
        Sentence(["Founding", "Kojima"], ["O", "I-PER"]),
    ]


@pytest.mark.parametrize(
    ("text", "line", "column", "found"),
    [
        ("a|O b", 1, 5, "'b'"),
        ("a|O\n\n |O", 3, 2, "'|O'"),
        ("a|O b| c|O", 1, 5, "'b|'"),
        ("|", 1, 1, "'|'"),
    ],
)
def test_a_malformed_sentence_is_named(path: Path, text: str, line: int, column: int, found: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_sentences(path)
    assert str(caught.value) == (
        f"cannot read a sentence from {path}, line {line}, column {column}: expected a word, '|' and a tag, such as "
        f"Paris|I-LOC is|O, found {found}."
    )


@pytest.mark.parametrize(
    ("folder", "n_train", "n_dev", "tags"),
    [
        (SMALL, 64, 8, {"O", *(f"{place}-{kind}" for place in "BI" for kind in ("LOC", "ORG", "PER"))}),
        real(1400, 150, {"O", "I-LOC", "I-MISC", "I-ORG", "I-PER"}),
    ],
)
def test_tagged_sentences_read_and_print_back(folder: Path, n_train: int, n_dev: int, tags: set[str]) -> None:
    sentences = read_sentences(folder / "wikiner" / "train.txt")
    text = (folder / "wikiner" / "train.txt").read_text(encoding="utf-8")
    assert [str(sentence) for sentence in sentences] == [line.strip(" ") for line in text.split("\n") if line]
    assert (len(sentences), len(read_sentences(folder / "wikiner" / "dev.txt"))) == (n_train, n_dev)
    assert {tag for sentence in sentences for tag in sentence.tags} == tags


# --- texts with trees ---


def test_a_text_is_told_with_its_tree(path: Path) -> None:
    """Texts may be empty and nodes may have no children; spaces at brackets are optional."""
    path.write_text(DESCRIBED_TREES)
    turn, empty, again = read_described_trees(path)
    assert (turn.words, str(turn.tree)) == (["turn", "twice"], "(do (turn left left) turn)")
    assert (empty.words, empty.tree, empty.tree.children) == ([], OrderedTree("do"), [])
    assert (again.words, again.tree) == (["turn"], OrderedTree("do", [OrderedTree("turn", [OrderedTree("left")])]))
    assert again.tree.map(len) == OrderedTree(2, [OrderedTree(4, [OrderedTree(4)])])


@each(
    "text, column, expected, found",
    [
        ("a (b c)", 8, "a text, a tab and a tree", "the end of the line"),
        ("a\t", 3, "a tree, such as (turn left)", "the end of the line"),
        ("a\t()", 4, "a label after '(', such as (turn left)", "')'"),
        ("a\t((b) c)", 4, "a label after '(', such as (turn left)", "'('"),
        ("a\t(", 4, "a label after '(', such as (turn left)", "the end of the line"),
        ("a\t(b (c)", 9, "')' after the children of a node", "the end of the line"),
        ("a\t)", 3, "a label or '(', such as (turn left)", "')'"),
        ("a\tb c", 5, "the end of the line after a whole tree", "'c'"),
        ("a\t(b c) )", 9, "the end of the line after a whole tree", "')'"),
    ],
)
def test_a_malformed_tree_is_named(path: Path, text: str, column: int, expected: str, found: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_described_trees(path)
    assert str(caught.value) == (
        f"cannot read a tree from {path}, line 1, column {column}: expected {expected}, found {found}."
    )


# --- pictures ---


def test_blank_lines_separate_pictures(path: Path) -> None:
    path.write_text(PICTURES)
    first = Picture([Sentence(["blue", "red|a"], ["sky", "b"]), Sentence(["green", "||"], ["land", "O"])])
    assert read_pictures(path) == [first, Picture([Sentence(["blue"], ["sea"])])]
    assert (list(first.words()), list(first.tags())) == (["blue", "red|a", "green", "||"], ["sky", "b", "land", "O"])


def test_rows_of_a_picture_are_of_one_length(path: Path) -> None:
    path.write_text("a|O b|O\n\na|O\na|O b|O\n")
    with pytest.raises(DataError, match="line 4, column 8: expected 1 pixels, as in the row before, found the end"):
        read_pictures(path)


# --- lattices ---


def test_a_lattice_is_its_arcs_and_tags(path: Path) -> None:
    path.write_text(LATTICES)
    first, second = read_lattices(path)
    assert first == Lattice(["0", "4", "5"], [[], [(0, "17")], [(1, "18"), (0, "93")]])
    assert (list(first.characters()), list(first.words())) == (["17", "18"], ["93"])
    assert second == Lattice(["0"], [[]])


@pytest.mark.parametrize(
    ("text", "line", "column", "expected", "found"),
    [
        ("", 1, 1, "the number of lattices", "the end of the file"),
        ("0", 1, 1, "the number of lattices, at least 1", "'0'"),
        ("x", 1, 1, "the number of lattices, at least 1", "'x'"),
        ("1 1", 1, 3, "the number of lattices in the file", "'1'"),
        ("9999999999", 1, 1, "the number of lattices", "'9999999999'"),
        ("2\n1\n0\n0\n", 4, 2, "the number of positions of a lattice", "the end of the file"),
        ("1\n1\n0\n0\n\n7", 6, 1, "the end of the file after 1 lattices", "'7'"),
        ("1\n\n0", 3, 1, "the number of positions, at least 1", "'0'"),
        ("1\n2\n0", 3, 2, "2 tags, one for each position", "the end of the line"),
        ("1\n2\n0 1 1", 3, 5, "2 tags, one for each position", "'1'"),
        ("1\n2\n1 1\n", 3, 1, "tag 0 for the first position", "'1'"),
        ("1\n2\n0 1\n1 0 5\n", 4, 1, "0, as no arc ends at the first position", "'1'"),
        ("1\n2\n0 1\n0\n", 4, 2, "the number of arcs that end at position 1", "the end of the file"),
        ("1\n2\n0 1\n0\n\n", 5, 1, "the number of arcs that end at position 1", "the end of the line"),
        ("1\n2\n0 1\n0\n0\n", 5, 1, "the number of arcs that end at position 1, at least 1", "'0'"),
        ("1\n2\n0 1\n0\n1 0\n", 5, 4, "1 arcs, each a start and an id", "the end of the line"),
        ("1\n2\n0 1\n0\n1 0 5 6\n", 5, 7, "1 arcs, each a start and an id", "'6'"),
        ("1\n2\n0 1\n0\n1 1 5\n", 5, 3, "the start of an arc that ends at position 1, a number from 0 to 0", "'1'"),
        ("1\n2\n0 1\n0\n1 0 +5\n", 5, 5, "the id of a character or word", "'+5'"),
        ("1\n2\n0 1\n0\n1 0 05\n", 5, 5, "the id of a character or word", "'05'"),
        ("1\n2\n0 1\n0\n1 0 ٣\n", 5, 5, "the id of a character or word", "'٣'"),
    ],
)
def test_a_malformed_lattice_is_named(path: Path, text: str, line: int, column: int, expected: str, found: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_lattices(path)
    message = str(caught.value)
    assert message.startswith(f"cannot read a lattice from {path}, line {line}, column {column}: expected {expected}")
    assert message.endswith(f", found {found}.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "n_train", "n_dev", "positions", "n_arcs_each", "of_characters"),
    [(SMALL, 64, 8, 12, 18, 0.62), real(1147, 113, 44, 66, 0.65)],
)
def test_files_of_lattices_read_and_print_back(
    folder: Path, n_train: int, n_dev: int, positions: int, n_arcs_each: int, of_characters: float
) -> None:
    lattices = read_lattices(folder / "lattice" / "train.txt")
    text = (folder / "lattice" / "train.txt").read_text()
    assert "\n\n".join([str(len(lattices)), *map(str, lattices)]).split() == text.split()
    assert (len(lattices), len(read_lattices(folder / "lattice" / "dev.txt"))) == (n_train, n_dev)
    n_characters = sum(len(list(lattice.characters())) for lattice in lattices)
    n_arcs = sum(len(arcs) for lattice in lattices for arcs in lattice.arcs)
    assert round(statistics.fmean(len(lattice.tags) for lattice in lattices)) == positions
    assert round(n_arcs / len(lattices)) == n_arcs_each
    assert round(n_characters / n_arcs, 2) == of_characters


def test_the_small_files_are_what_the_generators_draw() -> None:
    """They are not edited by hand: `python tests/helpers/data/datasets.py` writes them."""
    drawn = draw_files()
    assert {str(path.relative_to(SMALL)) for path in SMALL.rglob("*.*")} == set(drawn)
    for name, text in drawn.items():
        assert (SMALL / name).read_text(encoding="utf-8") == text, name


@each("name", READERS)
def test_compressed_files_are_read(name: str, tmp_path: Path) -> None:
    reader, compressed = READERS[name], gzip.compress(READERS[name].valid.encode())
    plain, packed = tmp_path / "data.txt", tmp_path / "data.txt.gz"
    plain.write_text(reader.valid)
    packed.write_bytes(compressed)
    assert reader.read(packed) == reader.read(plain)
    for damaged in (compressed[:-9], compressed[:12] + b"\xff\xff" + compressed[14:]):
        packed.write_bytes(damaged)
        with pytest.raises(DataError, match=r"data.txt.gz: the gzip file is truncated or damaged"):
            reader.read(packed)


# --- tabs ---


PARTED = ("pairs of texts", "texts with trees")
"""Formats in which tabs separate the parts of a line."""


@pytest.mark.parametrize("name", [name for name in READERS if name not in (*PARTED, "labelled trees")])
@pytest.mark.parametrize("seed", range(4))
def test_a_tab_separates_as_a_space_does(name: str, seed: int, path: Path) -> None:
    """Also next to a space and at the end of a line."""
    rng, valid = np.random.default_rng(seed), READERS[name].valid
    path.write_text(valid, encoding="utf-8")
    expected = READERS[name].read(path)
    ways = {" ": ("\t", " \t", "\t ", " "), "\n": ("\t\n", " \t\n", "\n")}
    path.write_text("".join(str(rng.choice(ways.get(mark, (mark,)))) for mark in valid), encoding="utf-8")
    assert READERS[name].read(path) == expected


@pytest.mark.parametrize("name", [*PARTED, "labelled trees"])
def test_a_tab_more_is_never_part_of_a_word(name: str, path: Path) -> None:
    reader, n_read = READERS[name], 0
    borders = {"pairs of texts": 2, "texts with trees": 1}.get(name, 0)
    for place in range(len(reader.valid) + 1):
        path.write_text(reader.valid[:place] + "\t" + reader.valid[place:], encoding="utf-8")
        with suppress(DataError):
            read = reader.read(path)
            n_read += 1
            assert reader.write(read).count("\t") <= borders * len(read)
    assert (n_read > 0) == (name != "pairs of texts")  # in these, a tab is always one too many


# --- tags of lattices ---

ONE_LATTICE = "3\n0 {} {}\n0\n1 0 1\n1 1 2\n"


def test_tags_of_lattices_are_names_or_numbers_that_a_file_names(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_text("1\n" + ONE_LATTICE.format("B-PER", "E-PER"))
    named = read_lattices(path)
    assert named[0].tags == ["0", "B-PER", "E-PER"]
    path.write_text("1\n" + ONE_LATTICE.format(1, 12))
    assert read_lattices(path)[0].tags == ["0", "1", "12"]
    (tmp_path / "tags.txt").write_text("0 O\n1 B-PER\n\n12\tE-PER\n")
    assert read_lattices(path) == named
    path.write_text("1\n" + ONE_LATTICE.format(1, 13))
    with pytest.raises(DataError, match=r"line 3, column 5: expected a tag named in tags\.txt"):
        read_lattices(path)
    assert read_lattices(path, answered=False)[0].tags == ["0", "B-PER", "13"]


@each(
    "text, message",
    [
        ("1 a\n1 b\n", "line 2, column 1: expected a number and a name not in an earlier line"),
        ("1 a\n2 a\n", "line 2, column 1: expected a number and a name not in an earlier line"),
        ("a 1\n", "line 1, column 1: expected a number and a name, such as 4 B-PER"),
        ("1\n", "line 1, column 1: expected a number and a name, such as 4 B-PER"),
        ("\n", "the file holds none"),
    ],
)
def test_malformed_names_of_tags_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.txt").write_text("1\n" + ONE_LATTICE.format(1, 2))
    (tmp_path / "tags.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_lattices(tmp_path / "train.txt")


@pytest.mark.parametrize("tags", ["\n", "", " \t\n"], ids=["a blank line", "no line", "blanks"])
def test_lattices_need_no_tags_where_no_answers_are_needed(tmp_path: Path, tags: str) -> None:
    """Lattices of one position, whose tags and arcs look alike, may stand between others, with and without tags."""
    body, path = "0\n1 0 1\n2 1 2 0 7\n", tmp_path / "train.txt"
    alone = f"1\n{tags}0\n"
    path.write_text(f"5\n3\n{tags}{body}\n{alone}\n3\n0 B E\n{body}{alone}1\n0\n0\n")
    lattices = read_lattices(path, answered=False)
    assert [len(lattice.arcs) for lattice in lattices] == [3, 1, 3, 1, 1]
    assert [lattice.tags for lattice in lattices] == [[], [], ["0", "B", "E"], [], ["0"]]
    path.write_text("\n\n".join(["5", *map(str, lattices)]))
    assert read_lattices(path, answered=False) == lattices
    path.write_text(f"1\n3\n{tags}{body}")
    with pytest.raises(DataError, match=r"line 3, column \d: expected 3 tags, one for each position"):
        read_lattices(path)
