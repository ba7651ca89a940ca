"""All readers of data, each with a valid file and a function that writes instances in its format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autobatch.models.data.circuit import read_circuits
from autobatch.models.data.comparison import read_comparisons
from autobatch.models.data.conformation import read_conformations
from autobatch.models.data.labelled_tree import read_labelled_trees
from autobatch.models.data.lattice import read_lattices
from autobatch.models.data.molecule import Molecule, read_molecules
from autobatch.models.data.ordered_tree import read_described_trees
from autobatch.models.data.picture import read_pictures
from autobatch.models.data.repeats import read_repeats
from autobatch.models.data.sentence import read_sentences, read_texts
from autobatch.models.data.sst import read_trees

SENTENCES = """010|I-MISC is|O a|b|O ||O 8\u00a0m|O
 Founding|O  Kojima|I-PER
"""
LATTICES = """2
3
0 4 5
0 \n1 0 17
2 1 18 0 93

1
0
0

"""
PICTURES = "\nblue|sky red|a|b \n green|land  |||O\n \n\nblue|sea\n"
TEXTS = "the key  falls\n\n a|b \n"
DESCRIBED_TREES = "turn  twice\t(do (turn left left) turn)\n\tdo\n\nturn\t (do(turn left) )\n"
LABELLED = """{"word": "MAX", "label": 9, "children": [{"word": "2 x"}, {"word": 9, "children": [{}]}]}
 {"label": "no"}
{"word": "\\"\\u00e9", "label": null, "children": []}
"""
MOLECULES = "CC(=O)N -2.5\nc1cc[nH]c1,3\n\n[NH4+].C%10C/C=%10\t1e-3\n"
CONFORMATIONS = """
 2
energy=-1.5 Lattice="1 0 0" Properties=species:S:1:pos:R:3:forces:R:3
C 0 0 0 0.5 0 0
O 3.0 0 2e0\t-0.5 0 .0

1
name=x energy=0
H 1 2 3 0 0 0
"""
COMPARISONS = "a cat  sleeps\t an animal sleeps\tyes\n\nall\tnone of these\tnot known\n"
REPEATS = " right*3|F  left*0|E\n\na*b|c*999|d\nleft*1|F across*20|A\n"
CIRCUITS = "true()|1  false()|0 or(0,1)|1\n\n false()|0 not(0)|1 and(1,0)|0 x-1(2,1,0)|yes\n"
TREES = "(3 (2 good) (2 film))\n(1 (2 bad) (1 (2 long) (2 film)))\n"


@dataclass(frozen=True)
class Reader:
    """A reader, a file that it reads, and the inverse of the reader."""

    read: Callable[[Path], list[Any]]
    valid: str
    write: Callable[[list[Any]], str]


def write_molecule(molecule: Molecule[str]) -> str:
    """Write all atoms apart from each other, and every bond as a ring closure with its own number."""
    ends = [""] * len(molecule.atoms)
    for number, (one, other, kind) in enumerate(molecule.bonds):
        ends[one] += f"{kind}%{number:02}"
        ends[other] += f"%{number:02}"
    return ".".join(map("".join, zip(molecule.atoms, ends, strict=True))) + f" {molecule.target!r}"


READERS = {
    "trees": Reader(read_trees, TREES, lambda trees: "\n".join(map(repr, trees))),
    "sentences": Reader(read_sentences, SENTENCES, lambda sentences: "\n".join(map(str, sentences))),
    "pictures": Reader(read_pictures, PICTURES, lambda read: "\n\n".join(map(str, read))),
    "texts": Reader(read_texts, TEXTS, lambda texts: "\n".join(map(" ".join, texts))),
    "texts with trees": Reader(
        read_described_trees,
        DESCRIBED_TREES,
        lambda read: "\n".join(f"{' '.join(one.words)}\t{one.tree}" for one in read),
    ),
    "labelled trees": Reader(read_labelled_trees, LABELLED, lambda trees: "\n".join(map(repr, trees))),
    "molecules": Reader(read_molecules, MOLECULES, lambda read: "\n".join(map(write_molecule, read))),
    "conformations": Reader(read_conformations, CONFORMATIONS, lambda read: "\n".join(map(str, read))),
    "pairs of texts": Reader(read_comparisons, COMPARISONS, lambda read: "\n".join(map(str, read))),
    "repeated words": Reader(read_repeats, REPEATS, lambda read: "\n".join(map(str, read))),
    "circuits": Reader(read_circuits, CIRCUITS, lambda read: "\n".join(map(str, read))),
    "lattices": Reader(read_lattices, LATTICES, lambda read: "\n\n".join([str(len(read)), *map(str, read)])),
}
