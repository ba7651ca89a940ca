"""Small files in the formats of `autobatch.readers`, drawn at random, with what they hold."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ("film", "good", "l'été", "8\u00a0m", "naïve", "the", "not", "a|b", "1/2")
LABELS = ("S", "NP-SBJ", "VP", "ADJP", "-NONE-")
ATOMS = ("C", "N", "O", "CC", "C(=O)", "c1ccccc1", "C1CC1")


def pick(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    """Draw a string."""
    return values[rng.integers(len(values))]


def draw_sentence(rng: np.random.Generator) -> dict[str, Any]:
    """Draw words in a tree, which may be non-projective; the tag of a word follows from its letters."""
    n = int(rng.integers(1, 7))
    order = rng.permutation(n).tolist()
    parents = [-1] * n
    for place, node in enumerate(order[1:], start=1):
        parents[node] = order[rng.integers(place)]
    words = [pick(rng, WORDS) for _ in range(n)]
    return {"word": words, "upos": ["NOUN" if "m" in word else "ADJ" for word in words], "parent": parents}


def write_conllu(path: Path, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Write sentences with comments, multiword tokens and empty nodes."""
    drawn, lines = [draw_sentence(rng) for _ in range(n)], list[str]()
    for sentence in drawn:
        lines.append("# text = x")
        for number, fields in enumerate(zip(*sentence.values(), strict=True), start=1):
            word, tag, parent = fields
            if number % 3 == 1 and number < len(sentence["word"]):
                lines.append("\t".join([f"{number}-{number + 1}", "both", *"________"]))
            lines.append("\t".join([str(number), word, "_", tag, "_", "A=b|C=d", str(parent + 1), "dep", "_", "_"]))
            if number % 4 == 2:
                lines.append("\t".join([f"{number}.1", "empty", *"________"]))
        lines.append("")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return drawn


def write_conll(path: Path, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Write sentences in the four columns of CoNLL-2003."""
    drawn = [draw_sentence(rng) for _ in range(n)]
    text = "-DOCSTART- -X- O O\n\n"
    for sentence in drawn:
        rows = zip(sentence["word"], sentence["upos"], strict=True)
        text += "".join(f"{word} {tag} O {tag}\n" for word, tag in rows) + "\n"
    path.write_text(text, encoding="utf-8")
    return [{"word": x["word"], "tag": x["upos"]} for x in drawn]


def draw_tree(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    """Draw a tree with unary chains and traces; the label of a node is in the first of its leaves' labels."""
    if depth == 0 or rng.random() < 0.3:
        word = pick(rng, WORDS)
        return {"label": "NN" if "m" in word else "JJ", "word": word}
    return {"label": pick(rng, LABELS), "children": [draw_tree(rng, depth - 1) for _ in range(rng.integers(1, 4))]}


def show_tree(tree: dict[str, Any], space: str = " ") -> str:
    """Write a tree in brackets."""
    inner = tree["word"].replace("/", "\\/") if "word" in tree else space.join(show_tree(x) for x in tree["children"])
    return f"({tree['label']} {inner})"


def write_brackets(path: Path, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Write trees that span lines, in a pair of outer brackets each."""
    drawn = [draw_tree(rng, 4) for _ in range(n)]
    path.write_text("".join(f"( {show_tree(tree, chr(10) + '  ')})\n" for tree in drawn), encoding="utf-8")
    return drawn


def write_sst(path: Path, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Write binary trees whose label counts the good words, to 4 at most."""

    def draw(depth: int) -> dict[str, Any]:
        if depth == 0 or rng.random() < 0.2:
            word = pick(rng, WORDS[:2])
            return {"label": str(int(word == "good")), "word": word}
        children = [draw(depth - 1), draw(depth - 1)]
        return {"label": str(min(sum(int(child["label"]) for child in children), 4)), "children": children}

    drawn = [draw(3) for _ in range(n)]
    path.write_text("".join(f"{show_tree(tree)}\n" for tree in drawn), encoding="utf-8")
    return drawn


def write_csv(path: Path, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Write texts, some with commas, quotes and line ends, with a label and a number."""
    drawn = []
    for _ in range(n):
        words = [pick(rng, WORDS) for _ in range(rng.integers(1, 6))]
        text = ", ".join(words) + pick(rng, ("", ' "quoted"', "\nnext line"))
        drawn.append({"text": text, "label": "yes" if "good" in words else "no", "price": float(len(words))})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("text", "label", "price"))
        writer.writeheader()
        writer.writerows(drawn)
    return drawn


def write_jsonl(path: Path, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Write logical expressions as trees, with the truth value of each node, as JSON lines."""

    def draw(depth: int) -> dict[str, Any]:
        if depth == 0 or rng.random() < 0.2:
            word = pick(rng, ("true", "false"))
            return {"word": word, "label": word}
        children = [draw(depth - 1) for _ in range(rng.integers(1, 4))]
        word, are_true = pick(rng, ("and", "or")), [child["label"] == "true" for child in children]
        truth = all(are_true) if word == "and" else any(are_true)
        return {"word": word, "label": "true" if truth else "false", "children": children}

    drawn = [draw(3) for _ in range(n)]
    path.write_text("".join(f"{json.dumps(tree)}\n" for tree in drawn), encoding="utf-8")
    return drawn


def write_tu(folder: Path, rng: np.random.Generator, n: int) -> list[dict[str, Any]]:
    """Write rings and chains with labels of nodes and edges; the label of a graph says whether it is a ring."""
    folder.mkdir(exist_ok=True, parents=True)
    drawn, first = list[dict[str, Any]](), 1
    files: dict[str, list[Any]] = {
        x: [] for x in ("A", "graph_indicator", "graph_labels", "node_labels", "edge_labels")
    }
    for number in range(1, n + 1):
        size, is_ring = int(rng.integers(3, 7)), bool(rng.integers(2))
        ends = [(i, (i + 1) % size) for i in range(size - (not is_ring))]
        edges = [list(pair) for a, b in ends for pair in ((a, b), (b, a))]
        graph = {"edges": edges, "x": rng.integers(0, 4, size).tolist(), "label": int(is_ring)}
        graph["edge_label"] = rng.integers(0, 2, len(edges)).tolist()
        files["A"] += [f"{a + first}, {b + first}" for a, b in edges]
        files["graph_indicator"] += [number] * size
        files["graph_labels"].append(graph["label"])
        files["node_labels"] += graph["x"]
        files["edge_labels"] += graph["edge_label"]
        drawn.append(graph)
        first += size
    for part, lines in files.items():
        (folder / f"MADE_{part}.txt").write_text("".join(f"{line}\n" for line in lines))
    return drawn


def write_penman(path: Path, rng: np.random.Generator, n: int) -> None:
    """Write graphs with variables that are used twice, inverted roles and constants."""
    text = ""
    for number in range(n):
        verb, thing = pick(rng, ("want-01", "see-01")), pick(rng, ("boy", "girl", "cat"))
        polarity = " :polarity -" if rng.integers(2) else ""
        text += f'# ::id {number}\n(w / {verb}{polarity}\n   :ARG0 (b / {thing} :name "Kim")\n'
        text += "   :ARG1 (g / go-02 :ARG0 b :time-of (n / now)))\n\n"
    path.write_text(text)


def draw_lattice(rng: np.random.Generator) -> list[list[tuple[str, float, int]]]:
    """Draw the arcs that leave each junction of a lattice: a word, its score and a distance."""
    n = int(rng.integers(1, 6))

    def draw_arc(start: int) -> tuple[str, float, int]:
        word = pick(rng, WORDS)
        return word, len(word) / 10, int(rng.integers(1, n - start + 1))

    return [[draw_arc(start) for _ in range(rng.integers(1, 4))] for start in range(n)]


def write_plf(path: Path, rng: np.random.Generator, n: int) -> list[list[list[tuple[str, float, int]]]]:
    """Write lattices as Python tuples."""
    drawn = [draw_lattice(rng) for _ in range(n)]
    lines = [f"{tuple(tuple(arcs) for arcs in lattice)!r}\n".replace(" ", "") for lattice in drawn]
    path.write_text("".join(lines), encoding="utf-8")
    return drawn


def write_slf(folder: Path, rng: np.random.Generator, n: int) -> list[list[list[tuple[str, float, int]]]]:
    """Write lattices in HTK's format, a file each, with words on links."""
    folder.mkdir(exist_ok=True, parents=True)
    drawn = [draw_lattice(rng) for _ in range(n)]
    for number, lattice in enumerate(drawn):
        arcs = [(start, start + far, word, score) for start, arcs in enumerate(lattice) for word, score, far in arcs]
        lines = ["VERSION=1.0", f"UTTERANCE=u{number}", "lmscale=9.5 wdpenalty=0.0", "# a comment"]
        lines += [f"N={len(lattice) + 1} L={len(arcs)}"]
        lines += [f"I={node} t={node / 10:.2f}" for node in range(len(lattice) + 1)]
        for k, (start, end, word, score) in enumerate(arcs):
            quoted = '"' + word.replace("'", "\\'") + '"'
            lines.append(f"J={k}\tS={start}\tE={end}\tW={quoted}\ta={-100 * score:.1f} l={-score}")
        (folder / f"{number:04d}.slf").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return drawn


def write_smiles(path: Path, rng: np.random.Generator, n: int) -> None:
    """Write chains of atoms and rings, with the number of characters as the target."""
    drawn = ["C" + "".join(pick(rng, ATOMS) for _ in range(rng.integers(0, 5))) for _ in range(n)]
    path.write_text("".join(f"{smiles} {len(smiles) / 10}\n" for smiles in drawn))


WRITERS: Mapping[str, Callable[[Path, np.random.Generator, int], Any]] = {
    "brackets": write_brackets, "conll": write_conll, "conllu": write_conllu, "csv": write_csv, "jsonl": write_jsonl,
    "penman": write_penman, "plf": write_plf, "slf": write_slf, "smiles": write_smiles, "sst": write_sst,
    "tu": write_tu,
}  # fmt: skip
"""Writers of files, and of folders for "slf" and "tu"; they return what the files hold."""
