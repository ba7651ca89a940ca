"""`autobatch predict` and the server run folds of exported files on JSON, without the model's code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.serving.predictor import Predictor
from autobatch.cli.training.trained import Trained, describe_results
from autobatch.readers import Vocabulary, describe
from helpers.runs.commands import Command
from helpers.runs.ways import each


class Net(ab.Module):
    """A child-sum network with several kinds of results."""

    scores = ab.fold("children", "node", root="output")
    words = ab.fold(parents="head", node="node", each="both")
    graphs = ab.fold_edges("edges", "update", "leaf", rounds=2, each="both")

    def __init__(self, rng: np.random.Generator) -> None:
        self.words_ = ab.Parameter(rng.standard_normal((9, 3)))
        self.inner = ab.Linear(3, 3, rng=rng)

    @ab.cell
    def node(self, children: list[Any], word: int = 0) -> Any:
        return ab.tanh(ab.lookup(self.words_, word) + ab.sum_n([self.inner(x) for x in children], shape=(3,)))

    @ab.cell
    def leaf(self, word: int) -> Any:
        return ab.lookup(self.words_, word)

    @ab.cell
    def update(self, state: Any, messages: list[Any]) -> Any:
        return ab.tanh(state + ab.sum_n([self.inner(x) for x in messages], shape=(3,)))

    @ab.cell
    def output(self, state: Any) -> Any:
        return ab.softmax(state)

    @ab.cell
    def both(self, state: Any) -> Any:
        return ab.argmax(state), ab.sum(state)


TREES: list[dict[str, Any]] = [
    {"word": 3, "children": [{"word": 4}, {"children": [{"word": 8}]}]},
    {"word": 1},
    {"children": []},
]
SENTENCES: list[dict[str, Any]] = [{"head": [1, -1, 1], "word": [2, 5, 7]}, {"head": [-1], "word": [1]}]
GRAPHS: list[dict[str, Any]] = [{"edges": [[0, 1], [1, 0], [1, 1]], "word": [2, 5, 7]}, {"edges": [], "word": [1]}]


def write(path: Path, instances: list[Any]) -> Path:
    path.write_text("".join(json.dumps(instance) + "\n" for instance in instances))
    return path


@pytest.fixture
def net() -> Net:
    """A model for predictions."""
    return Net(np.random.default_rng(0)).eval()


def test_predictions_are_those_of_the_fold(net: Net, command: Command, tmp_path: Path) -> None:
    file, out = tmp_path / "net.ab", tmp_path / "out.jsonl"
    ab.export(net.scores, file, examples=TREES)
    status, _, said = command(
        "predict", "--model", file, "--data", write(tmp_path / "trees.jsonl", TREES), "--out", out
    )
    assert status == 0, said
    found = [json.loads(line)["result"] for line in out.read_text().splitlines()]
    assert np.allclose(found, [net.scores(tree) for tree in TREES], rtol=1e-5)
    for function, instances in ((net.words, SENTENCES), (net.graphs, GRAPHS)):
        ab.export(function, file, examples=instances)
        data = write(tmp_path / "instances.jsonl", instances)
        assert command("predict", "--model", file, "--data", data, "--out", out)[0] == 0
        for line, instance in zip(out.read_text().splitlines(), instances, strict=True):
            expected = [[int(label), float(total)] for label, total in function(instance)]
            assert np.allclose(json.loads(line)["result"], expected, rtol=1e-5)


def test_a_server_reads_json_and_writes_results(net: Net, tmp_path: Path) -> None:
    file = tmp_path / "net.ab"
    ab.export(net.scores, file, examples=TREES)
    predictor = Predictor.of(Trained(None, file, is_exported=True).read())
    assert predictor.draw() == []
    run = ab.batched(getattr(predictor.model, predictor.spec.predictor), policy=predictor.stored.policy)
    for given in (TREES[0], json.dumps(TREES[0])):
        instance = predictor.read(given)
        written = predictor.write(instance, run([instance])[0])
        assert np.allclose(written["result"], net.scores(TREES[0]), rtol=1e-5)
    with pytest.raises(ab.DataError, match="from the text, column 2: expected JSON, found"):
        predictor.read("{'word': 1}")
    with pytest.raises(ab.DataError, match=r"must be a dict or an object, got \[1, 2\]"):
        run([predictor.read([1, 2])])
    assert predictor.schema["type"] == ["object", "array"]
    assert "fields children, word" in predictor.schema["description"]
    with ab.serve(run) as server:
        for word, got in (
            (1.5, "float"),
            ("film", "'film'"),
            ([1, 2], r"list\(int, int\)"),
            (True, "True"),
            (None, "None"),
        ):
            future = server.submit(predictor.read({"word": word}))
            with pytest.raises(ab.GraphError, match=f"field or argument 'word' of .* must be int, as in .*, got {got}"):
                future.result(60)


def test_vocabularies_in_the_file_encode_words(net: Net, command: Command, tmp_path: Path) -> None:
    file, out = tmp_path / "net.ab", tmp_path / "out.jsonl"
    about = describe({"word": Vocabulary(["the", "film", "ends"])})
    ab.export(net.scores, file, examples=TREES, about={**about, "trained": "today", "settings": {"lr": 0.1}})
    trees = [{"word": "film", "children": [{"word": "the"}, {"word": "new"}]}]
    data = write(tmp_path / "trees.jsonl", trees)
    assert command("predict", "--model", file, "--data", data, "--out", out)[0] == 0
    (found,) = (json.loads(line)["result"] for line in out.read_text().splitlines())
    assert np.allclose(found, net.scores({"word": 2, "children": [{"word": 1}, {"word": 0}]}), rtol=1e-5)
    predictor = Predictor.of(Trained(None, file, is_exported=True).read())
    assert predictor.read(trees[0]) == {"word": 2, "children": [{"word": 1}, {"word": 0}]}
    status, _, said = command("predict", "--model", file, "--data", write(data, [*trees, {"word": 2}]))
    assert status
    assert "instance 2: field 'word': words to encode must be a str or a list of str, got 2" in said


class Labelled(Net):
    """A model whose predictions take a tag, but no label."""

    labels = ab.fold(("left", "right"), "join", "tagged", root="output")

    @ab.cell
    def tagged(self, tag: int) -> Any:
        return ab.lookup(self.words_, tag)

    @ab.cell
    def join(self, left: Any, right: Any) -> Any:
        return left + self.inner(right)


def test_fields_that_predictions_do_not_take_are_not_encoded(command: Command, tmp_path: Path) -> None:
    file, net = tmp_path / "net.ab", Labelled(np.random.default_rng(0)).eval()
    about = describe({name: Vocabulary.of_labels(["a", "b"]) for name in ("tag", "label")})
    ab.export(net.labels, file, examples=[{"left": {"tag": 0}, "right": {"tag": 1}}], about=about)
    tree = {"left": {"tag": "b"}, "right": {"tag": "a"}}
    trees = [tree, {**tree, "label": "a"}, {**tree, "label": "unseen"}, {**tree, "label": 3}]
    data = write(tmp_path / "trees.jsonl", trees)
    status, out, said = command("predict", "--model", file, "--data", data)
    assert status == 0, said
    expected = net.labels({"left": {"tag": 1}, "right": {"tag": 0}})
    assert np.allclose([json.loads(line)["result"] for line in out.splitlines()], expected, rtol=1e-5)
    predictor = Predictor.of(Trained(None, file, is_exported=True).read())
    assert predictor.read(trees[2]) == {"left": {"tag": 1}, "right": {"tag": 0}, "label": "unseen"}
    assert "fields left, right, tag" in predictor.spec.reads
    with pytest.raises(ab.DataError, match=r"field 'tag': a label must be one of the 2 labels 'a', 'b', got 'c'"):
        predictor.read({"tag": "c"})


class Tagging(Net):
    """A model that predicts one of three labels, for all words or for the root."""

    each_word = ab.fold(parents="head", node="node", each="choose")
    root_alone = ab.fold(parents="head", node="node", root="choose")

    @ab.cell
    def choose(self, state: Any) -> Any:
        return ab.argmax(state)


LABELS = {
    "fit": Vocabulary.of_labels([*"XYZ"]),
    "few": Vocabulary.of_labels([*"XY"]),
    "open": Vocabulary(["a", "b"]),
}


@each("name", ["each_word", "root_alone"])
def test_labels_are_written_beside_their_ids(command: Command, tmp_path: Path, name: str) -> None:
    file, net = tmp_path / "net.ab", Tagging(np.random.default_rng(0)).eval()
    data = write(tmp_path / "data.jsonl", SENTENCES)
    several = {"first": LABELS["fit"], "second": LABELS["fit"]}
    for vocabularies, is_labelled in ((LABELS, True), (several, False), ({}, False)):
        ab.export(getattr(net, name), file, examples=SENTENCES, about=describe(vocabularies))
        status, out, said = command("predict", "--model", file, "--data", data)
        assert status == 0, said
        for line, sentence in zip(out.splitlines(), SENTENCES, strict=True):
            found, expected = json.loads(line), getattr(net, name)(sentence)
            if isinstance(expected, list):
                ids = [int(x) for x in expected]
                assert found == {"result": ids} | ({"labels": ["XYZ"[x] for x in ids]} if is_labelled else {})
            else:
                assert found == {"result": int(expected)} | ({"label": "XYZ"[int(expected)]} if is_labelled else {})
    ab.export(net.words, file, examples=SENTENCES, about=describe(LABELS))  # pairs of an id and a number
    assert "label" not in command("predict", "--model", file, "--data", data)[1]


@each("name", ["words", "graphs"])
def test_the_fields_of_arrays_are_described(net: Net, tmp_path: Path, name: str) -> None:
    fields = {"words": ["head", "word"], "graphs": ["edges", "word"]}
    assert getattr(net, name).fields == fields[name]


def test_a_reload_takes_new_parameters_of_the_same_programs(net: Net, tmp_path: Path) -> None:
    file = tmp_path / "net.ab"
    ab.export(net.scores, file, examples=TREES)
    trained = Trained(None, file, is_exported=True)
    predictor = Predictor.of(trained.read())
    net.inner.weight.data = np.full((3, 3), 0.5)
    ab.export(net.scores, file, examples=TREES)
    predictor.take(trained.read())
    assert np.allclose(predictor.model.scores(TREES[0]), net.scores(TREES[0]), rtol=1e-5)
    ab.export(net.words, file, examples=SENTENCES)
    with pytest.raises(ab.CheckpointError, match="another model"):
        predictor.take(trained.read())


class Shifted(ab.Module):
    """A model with an array that is not a parameter, such as the mean of the targets."""

    last = ab.scan("step", "start", last="shift")

    def __init__(self, mean: float) -> None:
        self.weight, self.start, self.mean = ab.Parameter(np.ones(1)), ab.Parameter(np.zeros(1)), np.full(1, mean)

    @ab.cell
    def step(self, state: Any, x: float) -> Any:
        return state + self.weight * x

    @ab.cell
    def shift(self, state: Any) -> Any:
        return state + self.mean


def test_a_reload_of_other_constants_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "shifted.ab"

    def write(mean: float) -> None:
        ab.export(Shifted(mean).eval().last, file, examples=[{"x": [1.0, 2.0]}])

    write(10.0)
    trained = Trained(None, file, is_exported=True)
    predictor = Predictor.of(trained.read())
    write(10.0)
    predictor.take(trained.read())
    write(20.0)
    with pytest.raises(ab.CheckpointError, match="restart the server"):
        predictor.take(trained.read())


def test_what_is_missing_is_said_in_a_sentence(net: Net, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "net.ab"
    ab.export(net.scores, file, examples=TREES)
    status, _, said = command("predict", "--model", file)
    assert status
    assert "--data" in said
    status, _, said = command("predict", "--model", file, "--data", write(tmp_path / "x.jsonl", [{}, {"word": "text"}]))
    assert status
    assert f"{tmp_path / 'x.jsonl'}, instance 2: " in said
    assert "'word'" in said
    assert ".py" not in said  # no line of a library
    ab.export(lambda tree: net.scores(tree), file, examples=TREES, module=net)
    status, _, said = command("predict", "--model", file, "--data", tmp_path / "x.jsonl")
    assert status
    assert "no model name" in said
    assert "not a fold" in said


@each("vocabularies", [3, {"word": 5}, {"word": [["a"]]}, {"word": ["a", "a"]}])
def test_malformed_vocabularies_are_named_with_their_file(
    net: Net, command: Command, tmp_path: Path, vocabularies: Any
) -> None:
    file = tmp_path / "net.ab"
    ab.export(net.scores, file, examples=TREES, about={"vocabularies": vocabularies})
    status, _, said = command("predict", "--model", file, "--data", write(tmp_path / "x.jsonl", TREES))
    assert (status, said.count("\n"), f"cannot use {str(file)!r}: " in said) == (2, 1, True), said


@dataclass
class Found:
    score: Any
    label: Any


def test_results_of_all_structures_become_json() -> None:
    outputs = Found(np.array([[0.5, np.nan], [1.0, 2.0]]), ({"of": np.array([3, 4])}, [np.float32(1.5), None]))
    assert describe_results(outputs, [{}, {}], {}) == [
        {"result": {"score": [0.5, None], "label": [{"of": 3}, 1.5]}},
        {"result": {"score": [1.0, 2.0], "label": [{"of": 4}, None]}},
    ]
