"""Read molecules in SMILES, with RDKit."""

from __future__ import annotations

import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from autobatch.keywords import checked
from autobatch.readers.extra import import_parser
from autobatch.readers.lines import Line, parse_lines, to_number

_PARTS = re.compile(r"[ \t]*([^ \t,]+)[ \t]*,?[ \t]*(.*)")
_WHAT = "a molecule"


@checked()
def read_smiles(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a molecule per line in SMILES, with RDKit (`pip install 'autobatch-nn[readers]'`).

    Args:
        path: the file; a number to predict may follow a molecule after blanks, tabs or a comma: `CCO -0.77`.

    Returns:
        A dict per molecule: `x` lists the atomic numbers of its atoms, without hydrogens; `edges` pairs (from, to) of
        atoms, each bond in both directions; `bond` the kind of each edge, such as "SINGLE" or "AROMATIC"; `target` is
        the number, if the line has one.

    Raises:
        DataError: RDKit is not installed; the file cannot be read, or holds no molecule; a line does not begin with
            SMILES of a valid molecule, or anything but a number follows the molecule.
    """
    chemistry, base = import_parser("rdkit.Chem", "SMILES"), import_parser("rdkit.rdBase", "SMILES")
    with base.BlockLogs():
        return parse_lines(Path(path), "molecules", partial(_parse, chemistry=chemistry), "one per line, such as CCO")


def _parse(line: Line, chemistry: Any) -> dict[str, Any]:
    parts = _PARTS.fullmatch(line.text.rstrip(" \t"))
    if parts is None:
        raise line.fault(_WHAT, 0, "SMILES, such as CCO")
    # Sanitize separately: in one step, MolFromSmiles returns None for bad syntax and for invalid molecules, without the
    # reason. If it does not sanitize, it keeps hydrogens too.
    molecule = chemistry.MolFromSmiles(parts[1], sanitize=False)
    if molecule is None:
        raise line.fault(_WHAT, parts.start(1), "SMILES, such as CCO")
    try:
        chemistry.SanitizeMol(molecule)
    except ValueError as error:  # such as a wrong valence, or a ring that cannot be aromatic
        reason = " ".join(str(error).split()).rstrip(".")
        raise line.fault(_WHAT, parts.start(1), f"a valid molecule ({reason})") from error
    molecule = chemistry.RemoveHs(molecule)
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), bond.GetBondType().name) for bond in molecule.GetBonds()]
    found: dict[str, Any] = {
        "x": [atom.GetAtomicNum() for atom in molecule.GetAtoms()],
        "edges": [[a, b] for a, b, _ in bonds] + [[b, a] for a, b, _ in bonds],
        "bond": [kind for _, _, kind in bonds] * 2,
    }
    if parts[2]:
        found["target"] = to_number(parts[2])
        if math.isnan(found["target"]):
            raise line.fault(_WHAT, parts.start(2), "a finite number, or the end of the line")
    return found
