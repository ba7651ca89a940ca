"""Test lattices in PLF, against Python's own parser, and in SLF, and malformed files."""

from __future__ import annotations

import ast
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.errors import DataError
from autobatch.readers import read_plf, read_slf
from helpers.data.files import write_plf, write_slf
from helpers.runs.ways import each

PLF = "((('guten',0.7,1),('gut',0.3,2),),(('Tag',1.0,1),),)"
SLF = """VERSION=1.0
N=3 L=3
I=0 t=0.00
I=2
I=1
J=0 S=0 E=1 W=guten a=-318.3 l=-1.5
J=1 S=1 E=2 W='It\\'s \\101' p=0.5
J=2 START=0 END=2 WORD=x\\\\y acoustic=-540.8
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file to write."""
    return tmp_path / "file.slf"


def arcs_of(instance: dict[str, Any], n: int) -> list[tuple[int, int, str]]:
    """Return the arcs of an instance with n junctions."""
    ends = instance["edges"]
    return [
        (into[0], out[1], instance["word"][into[1]])
        for into, out in zip(ends[::2], ends[1::2], strict=True)
        if into[1] == out[0] >= n
    ]


def test_plf_is_read_as_python_reads_it(path: Path) -> None:
    write_plf(path, np.random.default_rng(0), 50)
    lines = path.read_text("utf-8").splitlines()
    for read, line in zip(read_plf(path), lines, strict=True):
        lattice = ast.literal_eval(line)
        expected = [(start, start + far, word) for start, arcs in enumerate(lattice) for word, _, far in arcs]
        n = len(lattice) + 1
        assert arcs_of(read, n) == expected
        assert read["word"][:n] == [""] * n
        assert read["score"] == [0.0] * n + [score for arcs in lattice for _, score, _ in arcs]


class Paths(ab.Module):
    """Counts the paths to each node."""

    total = ab.fold(edges="edges", node="node")

    def __init__(self) -> None:
        self.one = ab.Parameter(np.float32(1.0))

    @ab.cell
    def node(self, children: list[Any], start: int) -> Any:
        return ab.sum_n(children, shape=()) + self.one * start


def test_a_fold_reads_lattices(path: Path) -> None:
    """Counted by dynamic programming, the paths from the first junction to the last are as many as by a fold."""
    write_plf(path, np.random.default_rng(1), 30)
    expected = []
    for line in path.read_text("utf-8").splitlines():
        lattice = ast.literal_eval(line)
        counts = [1] + [0] * len(lattice)
        for start, arcs in enumerate(lattice):
            for _, _, far in arcs:
                counts[start + far] += counts[start]
        expected.append(counts[-1])
    instances = [{**x, "start": [1] + [0] * (len(x["word"]) - 1)} for x in read_plf(path)]
    assert ab.batched(Paths().total, backend="reference")(instances).tolist() == expected


def test_plf_may_have_spaces_and_quotes(path: Path) -> None:
    path.write_text("((('\\xa0\\u2028\\\\',1,1)))\n")
    assert read_plf(path)[0]["word"][2] == "\u00a0\u2028\\"
    path.write_text('\ufeff ( ( ( "l\'e\u00a0t\\\\" , -1e-3 , 1 ) , ) , ) \r\n\r\n((("a\\"",1,1)))\n', "utf-8")
    first, second = read_plf(path)
    assert first == {"word": ["", "", "l'e\u00a0t\\"], "edges": [[0, 2], [2, 1]], "score": [0.0, 0.0, -0.001]}
    assert second["word"][2] == 'a"'


ESCAPES = (
    r"'a\nb'", r"'\303\251'", r"'\U0001F600'", r"'\U0000d7ff\U0010ffff'", r"'\t\a\0'", r"'\08\1234\377'",
    r"'\\d'", r"'\'\"'",
)  # fmt: skip


def test_escapes_of_plf_are_those_of_python(path: Path) -> None:
    path.write_text("".join(f"((({word},1,1),),)\n" for word in ESCAPES))
    assert [read["word"][2] for read in read_plf(path)] == [ast.literal_eval(word) for word in ESCAPES]


@each(
    "text, column, expected",
    [
        ("()", 2, "'(' to open the arcs"),
        *[
            (f"((('a{escape}',1,1),),)", 6, "an escape of Python")
            for escape in (r"\d", r"\ud800", r"\U0000DFFF", r"\U00110000", r"\400", r"\x4", r"\u12", r"\N{DASH}", r"\ ")
        ],
        ("x", 1, "'(' to open a lattice"),
        ("((('a',1,1),),", 15, "'(' to open the arcs"),
        ("((('a',1,1),),) x", 17, "the end of the line"),
        ("((('a',1,2),),)", 10, "a distance of at most 1"),
        ("((('a',1,0),),)", 10, "a distance of 1 or more"),
        ("((('a',1,1.5),),)", 10, "a distance of 1 or more"),
        ("((('a',nan,1),),)", 8, "a score"),
        ("((('a',1e999,1),),)", 8, "a score"),
        ("(((a,1,1),),)", 4, "a word in quotes"),
        ("((('a,1,1),),)", 4, "a word in quotes"),
        ("((('a',1,2),),(),)", 16, "an arc that leaves the junction"),
        ("((('a',1,1)('b',1,1),),)", 12, "',' or ')' after an arc"),
        ("((('a',1,1,1),),)", 12, "')' after a word"),
        ("(" * 100_000, 4, "a word in quotes"),
    ],
)
def test_malformed_plf_is_named_with_its_place(path: Path, text: str, column: int, expected: str) -> None:
    path.write_text(f"{PLF}\n{text}\n")
    with pytest.raises(DataError) as error:
        read_plf(path)
    assert f"{path}, line 2, column {column}: expected {expected}" in str(error.value)


def test_slf_is_read_as_drawn(tmp_path: Path) -> None:
    drawn = write_slf(tmp_path / "lattices", np.random.default_rng(0), 20)
    for read, lattice in zip(read_slf(tmp_path / "lattices"), drawn, strict=True):
        arcs = [(start, start + far, word, score) for start, arcs in enumerate(lattice) for word, score, far in arcs]
        n = len(lattice) + 1
        assert arcs_of(read, n) == [arc[:3] for arc in arcs]
        assert read["language"] == [0.0] * n + [-arc[3] for arc in arcs]
        assert np.allclose(read["acoustic"][n:], [-100 * arc[3] for arc in arcs], atol=0.06)


def test_slf_has_quotes_long_names_and_words_of_nodes(path: Path) -> None:
    path.write_bytes(gzip.compress(("\ufeff" + SLF).replace("\n", "\r\n").encode()))
    (read,) = read_slf(path)
    assert read == {
        "word": ["", "", "", "guten", "It's A", "x\\y"],
        "edges": [[0, 3], [3, 1], [1, 4], [4, 2], [0, 5], [5, 2]],
        "acoustic": [0.0, 0.0, 0.0, -318.3, 0.0, -540.8],
        "language": [0.0, 0.0, 0.0, -1.5, 0.0, 0.0],
        "posterior": [0.0, 0.0, 0.0, 0.0, 0.5, 0.0],
    }
    path.write_text("NODES=2 LINKS=1\nI=0 W=!NULL\nI=1 W=a\nJ=0 S=0 E=1\n")
    assert read_slf(path) == [{"word": ["!NULL", "a", ""], "edges": [[0, 2], [2, 1]]}]


@each("word, expected", [(r"f\303\274r", "für"), (r'"\342\202\254 \101"', "€ A"), (r"\\303", r"\303"), (r"\9", "9")])
def test_octal_codes_of_slf_are_bytes(path: Path, word: str, expected: str) -> None:
    path.write_text(f"N=2 L=1\nI=0\nI=1\nJ=0 S=0 E=1 W={word}\n")
    assert read_slf(path)[0]["word"][2] == expected


@each("word, column", [(r"f\374r", 16), (r"'\303\050'", 16), (r"\400", 15), (r"\303x", 15)])
def test_octal_codes_that_are_not_utf_8_are_refused(path: Path, word: str, column: int) -> None:
    path.write_text(f"N=2 L=1\nI=0\nI=1\nJ=0 S=0 E=1 W={word}\n")
    with pytest.raises(DataError, match=f"line 4, column {column}: expected octal codes of bytes in UTF-8"):
        read_slf(path)


@each(
    "old, new, told",
    [
        ("N=3 L=3", "L=3", "line 3, column 1: expected N= and L=, the numbers of nodes and links"),
        ("N=3 L=3\n", "N=3\nN=3 L=3\n", "line 3, column 3: expected one N= in the file"),
        ("N=3 L=3\n", "N=0 L=0\n", "line 2, column 3: expected one N= in the file, and at least one node, found '0'"),
        ("N=3", "N=4", "expected N=4 nodes and L=3 links, found 3 and 3"),
        ("I=1\n", "", "expected N=3 nodes and L=3 links, found 2 and 3"),
        ("I=1\n", "I=2\n", "line 5, column 3: expected a number I="),
        ("I=1\n", "I=1 J=1\n", "line 5, column 7: expected a node I= or a link J=, each in a line of its own"),
        ("I=1\n", "I=3\n", "line 5, column 3: expected I= with a number below 3, found '3'"),
        ("E=1 ", "E=7 ", "line 6, column 11: expected E= with a number below 3, found '7'"),
        ("S=0 E=1 ", "E=1 ", "line 6, column 32: expected S= with a number below 3, found the end of the line"),
        ("E=1 ", "E=1 E=1 ", "line 6, column 13: expected one field E"),
        ("E=2 W=", "E=0 W=", "line 6, column 11: expected links without a cycle"),
        ("J=2 START=0 END=2", "J=2 START=0 END=1", "^$"),
        ("START=0 END=2", "START=2 END=2", "line 8, column 17: expected links without a cycle"),
        ("J=1 S=1 E=2", "J=1 S=0 E=2", "line 4, column 1: expected only one node without successors"),
        ("a=-318.3", "a=inf", "line 6, column 23: expected a finite number"),
        ("W='It", 'W="It', "line 7, column 13: expected a field such as W=word"),
        ("t=0.00", "t", "line 3, column 5: expected a field such as W=word, found 't'"),
        ("I=1\n", "I=1\nbase=10\n", "line 6, column 1: expected a node I= or a link J="),
        ("I=1\n", "I=1 L=sub\n", "without sublattices"),
    ],
)
def test_malformed_slf_is_named_with_its_place(path: Path, old: str, new: str, told: str) -> None:
    assert old in SLF
    path.write_text(SLF.replace(old, new))
    if told == "^$":
        read_slf(path)
        return
    with pytest.raises(DataError, match=told) as error:
        read_slf(path)
    assert str(path) in str(error.value)


def test_files_and_folders_hold_lattices(path: Path) -> None:
    with pytest.raises(DataError, match="the file holds none"):
        read_slf(path.parent)
    path.write_text("")
    with pytest.raises(DataError, match="expected N= and L=, the numbers of nodes and links"):
        read_slf(path)
    path.write_text(SLF)
    assert read_slf(path.parent) == read_slf(path)
    with pytest.raises(DataError, match="no such file"):
        read_slf(path.parent / "none")
