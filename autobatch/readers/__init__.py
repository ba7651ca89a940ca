"""Readers of standard file formats, and vocabularies that turn their words and labels into ints.

Each reader returns a list of instances: dicts of lists of strings and numbers, which `autobatch.fold`,
`autobatch.scan`, `autobatch.fold_edges` and JSON accept unchanged. Files are UTF-8, with or without a byte order mark,
with any line endings, plain or compressed with gzip. A malformed file raises a DataError that names the file, the line
and, where there is one, the column.
"""

from typing import TYPE_CHECKING

from autobatch.missing import suggesting
from autobatch.readers.brackets import read_brackets
from autobatch.readers.conll import read_conll, read_conllu
from autobatch.readers.files import Files
from autobatch.readers.json_lines import read_jsonl
from autobatch.readers.lattices import read_plf, read_slf
from autobatch.readers.penman_graphs import read_penman
from autobatch.readers.smiles import read_smiles
from autobatch.readers.table import read_csv
from autobatch.readers.tu import read_tu
from autobatch.readers.vocabulary import Vocabulary, describe, encode, restore, values

__all__ = [
    "Files", "Vocabulary", "describe", "encode", "read_brackets", "read_conll", "read_conllu", "read_csv", "read_jsonl",
    "read_penman", "read_plf", "read_slf", "read_smiles", "read_tu", "restore", "values",
]  # fmt: skip

if not TYPE_CHECKING:  # or mypy would accept any name
    __getattr__ = suggesting(__name__, __all__)
