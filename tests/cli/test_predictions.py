"""`train`, `eval` and `predict` with all kinds of models, including those that await their predictions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import autobatch as ab
from autobatch.cli.serving.predictor import Predictor
from autobatch.cli.training.trained import Trained
from autobatch.models.data.vocabulary import Vocabulary
from autobatch.system.nested_json import parse_json
from helpers.runs.commands import Command
from helpers.twins.cases import AWAITING, MORE

METRIC = r"(\w+(?: \w+)*) (-?\d+\.\d+%?)"
NAMES = dict.fromkeys(case.model for case in (*MORE, *AWAITING))


@pytest.mark.cases(1)
@pytest.mark.parametrize("model", NAMES)
def test_a_model_is_trained_measured_and_asked(
    command: Command, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)
    options = "--dim", 8, "--epochs", 2, "--batch-size", 16, "--lr", 0.02, "--backend", "reference"
    status, out, err = command("train", model, *options, "--checkpoint", tmp_path / "run")
    assert (status, err) == (0, "")
    told = re.findall(rf"dev {METRIC}", out)
    assert len(told) % 2 == 0 < len(told)
    status, out, err = command("eval", model, "--checkpoint", tmp_path / "run" / "last.safetensors")
    assert (status, err) == (0, "")
    assert dict(re.findall(rf"  {METRIC}", out)) == dict(told[len(told) // 2 :])
    status, out, err = command("predict", model, "--checkpoint", tmp_path / "run")
    assert (status, err) == (0, "")
    assert len([json.loads(line) for line in out.splitlines()]) == 10
    status, told_of, err = command("export", model, "--checkpoint", tmp_path / "run", "--out", tmp_path / "model.ab")
    assert (status, err) == (0, "")
    assert re.fullmatch(rf"{re.escape(str(tmp_path / 'model.ab'))}: {model}, \d+ kB\n", told_of)
    assert command("predict", "--model", tmp_path / "model.ab") == (0, out, "")
    measured = command("eval", model, "--checkpoint", tmp_path / "run")
    assert command("eval", "--model", tmp_path / "model.ab") == measured


BINARY, ANY, TAGGED = "(7 (7 a) (7 b))", "(7 (7 a) (7 b) (7 c))", "a|7 b|7"


@pytest.mark.parametrize(
    ("model", "line", "label"),
    [
        *[(model, BINARY, 7) for model in ("tree-lstm", "tree-lstm-2type", "tree-gru", "mv-rnn", "early-exit")],
        *[(model, TAGGED, "7") for model in ("bilstm-tagger", "bilstm-char-tagger", "bilstm-crf", "dag-rnn")],
        ("tree-lstm-childsum", ANY, "7"),
        ("grid-lstm", "a\tb\t7", "7"),
        ("nested-rnn", "a*2|7", "7"),
        ("random-dag", "a()|7 b(0)|7", "7"),
    ],
)
def test_numbers_are_predicted_for_labels_of_binary_trees_alone(
    command: Command, model: str, line: str, label: int | str, tmp_path: Path
) -> None:
    (tmp_path / "data.txt").write_text(f"{line}\n\n" * 10)
    options = "--dim", 4, "--epochs", 1, "--backend", "reference", "--checkpoint", tmp_path / "run"
    assert command("train", model, "--data", tmp_path / "data.txt", *options)[0] == 0
    status, out, err = command("predict", model, "--checkpoint", tmp_path / "run")
    assert (status, err) == (0, "")
    found = [value for name, value in json.loads(out).items() if name in ("label", "labels", "tags")]
    assert re.findall(r'"?\b7\b"?', json.dumps(found)) == [json.dumps(label)] * json.dumps(found).count("7")
    assert found


@pytest.mark.parametrize("model", ["graph-network", "molecule-forces", "tree-lstm", "bilstm-crf", "grid-lstm"])
def test_what_a_model_that_diverged_predicts_is_json(
    command: Command, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN and infinity become null, as in served predictions."""
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 18)
    options = "--dim", 8, "--epochs", 1, "--lr", 1e30, "--backend", "reference", "--checkpoint", tmp_path / "run"
    assert command("train", model, *options, "--json", tmp_path / "train.jsonl")[0] == 0
    status, out, err = command("predict", model, "--checkpoint", tmp_path / "run")
    assert (status, err) == (0, "")
    written = [*out.splitlines(), *(tmp_path / "train.jsonl").read_text().splitlines()]
    assert len([json.loads(line, parse_constant=pytest.fail) for line in written]) == 3
    assert ("null" in out) == (model in ("graph-network", "molecule-forces"))


@pytest.mark.parametrize("name", ["eval", "predict", "serve"])
@pytest.mark.parametrize(
    "given", [(), ("tree-lstm",), ("tree-lstm", "--model", "x.ab", "--checkpoint", "runs"), ("--checkpoint", "r")]
)
def test_one_trained_model_is_named(name: str, given: tuple[str, ...], command: Command) -> None:
    status, _, err = command(name, *given)
    assert status == 2
    assert "give either MODEL and --checkpoint DIR, or --model FILE; see" in err


def test_what_a_file_lacks_is_told(command: Command, tmp_path: Path) -> None:
    cell = ab.LSTMCell(2, 3, rng=np.random.default_rng(0))
    cell.eval()
    ab.export(lambda x: cell(x, (np.zeros(3), np.zeros(3))), tmp_path / "cell.ab", examples=[np.ones(2)], module=cell)
    status, _, err = command("predict", "--model", tmp_path / "cell.ab")
    assert status == 2
    assert "ab.export wrote it, so it holds no model name, and its exported function is not a fold" in err


def test_measuring_needs_the_library_of_the_metric(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the library, the metric is omitted with a warning."""
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)
    monkeypatch.setattr("autobatch.models.spec.find_spec", lambda package: None)
    monkeypatch.setattr("autobatch.models.seq2seq.find_spec", lambda package: None)
    kept = "--checkpoint", tmp_path / "run"
    lacking = (
        "autobatch: the package sacrebleu is not installed, so its metrics are left out; "
        "pip install 'autobatch-nn[bleu]'.\n"
    )
    for arguments in (("train", "seq2seq", "--dim", 4, "--epochs", 1, *kept), ("eval", "seq2seq", *kept)):
        status, out, err = command(*arguments)
        assert (status, err) == (0, lacking)
        assert " exact " in out
        assert "bleu" not in out
    status, _, err = command("predict", "seq2seq", *kept)
    assert (status, err) == (0, "")


def test_a_file_of_other_vocabularies_is_not_taken_up(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parameters alone would be applied to words of the served model's vocabulary."""
    monkeypatch.setattr("autobatch.models.data.dataset.N_DRAWN", 90)
    for data in ("reviews", "listops"):
        given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--data", data, "--checkpoint", tmp_path / data
        assert command("train", "tree-lstm", *given)[0] == 0
    predictor = Predictor.of(Trained("tree-lstm", tmp_path / "reviews").read())
    stored = Trained("tree-lstm", tmp_path / "reviews").read()
    stored.parameters["output.bias"] = stored.parameters["output.bias"] + 1.0
    predictor.take(stored)
    assert np.array_equal(predictor.model.state_dict()["output.bias"], stored.parameters["output.bias"])
    before = predictor.model.state_dict()
    words = stored.encoding.vocabularies["words"].words
    for vocabularies in ({"words": Vocabulary(words[::-1])}, {}):
        other = replace(stored, encoding=replace(stored.encoding, vocabularies=vocabularies))
        with pytest.raises(ab.CheckpointError, match="vocabularies built from other data; restart the server"):
            predictor.take(other)
    with pytest.raises(ab.CheckpointError, match="restart the server"):
        predictor.take(Trained("tree-lstm", tmp_path / "listops").read())
    assert all(np.array_equal(x, before[name]) for name, x in predictor.model.state_dict().items())


def test_data_of_training_that_is_not_here_is_said_to_be_that(command: Command, tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("(1 (1 a) (0 b))\n" * 20)
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--data", tmp_path / "trees.txt"
    assert command("train", "tree-lstm", *given, "--checkpoint", tmp_path / "run")[0] == 0
    assert command("export", "tree-lstm", "--checkpoint", tmp_path / "run", "--out", tmp_path / "trees.ab")[0] == 0
    read = Predictor.of(Trained(None, tmp_path / "trees.ab", is_exported=True).read()).read
    for wrong, shown in (
        (3, "3"),
        (None, "null"),
        (True, "true"),
        ([None, "a"], r'\[null, "a"\]'),
        ([[]], r"\[\[\]\]"),
    ):
        with pytest.raises(ab.DataError, match=rf"must be a string .*, got {shown}\."):
            read(wrong)
    for text in ("", " ", "\n\n", "\ud800", "(1 a\udfff)", "(1 \ud83d)"):
        with pytest.raises(ab.DataError, match=r"the text (must be valid Unicode|holds none)") as told:
            read(text)
        assert "file" not in str(told.value)
    for key in ("instance", "instances"):
        with pytest.raises(
            ab.DataError, match=r"cannot read a tree .*each line is an instance without an enclosing object"
        ):
            read({key: "(1 (1 a) (0 b))"})
    with pytest.raises(ab.DataError) as caught:
        read({"word": "a"})
    assert "alone" not in str(caught.value)
    (tmp_path / "trees.txt").unlink()
    status, _, err = command("eval", "--model", tmp_path / "trees.ab")
    assert status == 2
    assert err.endswith("The model was trained on this data; give other data with --data.\n")


@pytest.mark.parametrize(
    ("model", "text", "files"),
    [
        ("tree-lstm", "(1 (1 a) (0 b))", ["dev.txt"]),
        ("tree-lstm-childsum", '{"word": "a", "label": "1"}', ["dev.jsonl"]),
        ("bilstm-tagger", "Paris|B is|O", ["dev.txt"]),
        ("seq2seq", "a b", ["dev.en", "dev.de"]),
    ],
)
def test_a_folder_stands_for_its_development_data(
    model: str, text: str, files: list[str], command: Command, tmp_path: Path
) -> None:
    """Prediction and evaluation need only the development data."""
    folder, run = tmp_path / "data", tmp_path / "run"
    folder.mkdir()
    for name in files:
        (folder / name).write_text((text + "\n") * 3)
        (folder / name.replace("dev", "train")).write_text((text + "\n") * 20)
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--data", folder, "--checkpoint", run
    assert command("train", model, *given)[0] == 0
    for name in files:
        (folder / name.replace("dev", "train")).unlink()
    for data in (("--data", folder), ()):
        status, out, err = command("predict", model, "--checkpoint", run, *data)
        assert (status, len(out.splitlines()), err) == (0, 3, "")
        assert command("eval", model, "--checkpoint", run, *data)[0] == 0
    assert "must hold at least one training instance" in command("train", model, *given, "--resume")[2]
    (folder / files[0]).unlink()
    assert f"{files[0]}: no such file" in command("predict", model, "--checkpoint", run, "--data", folder)[2]
    assert "train." in command("train", model, "--data", folder)[2]


def test_data_without_labels_are_not_measured(command: Command, tmp_path: Path) -> None:
    """A share is omitted if nothing counts towards it; if nothing counts at all, that is an error."""
    data = {name: tmp_path / f"{name}.jsonl" for name in ("all", "below", "none")}
    data["all"].write_text('{"word": "a", "label": "1", "children": [{"word": "b", "label": "2"}]}\n' * 20)
    data["below"].write_text('{"word": "a", "children": [{"word": "b", "label": "2"}]}\n')
    data["none"].write_text('{"word": "a", "children": [{"word": "b"}]}\n')
    given = "--dim", 4, "--epochs", 1, "--backend", "reference", "--data", data["all"], "--checkpoint", tmp_path / "run"
    assert command("train", "tree-lstm-childsum", *given)[0] == 0
    evaluate = "eval", "tree-lstm-childsum", "--checkpoint", tmp_path / "run", "--data"
    assert "root accuracy" in command(*evaluate, data["all"])[1]
    status, out, _ = command(*evaluate, data["below"])
    assert status == 0
    assert "nodes accuracy" in out
    assert "root accuracy" not in out
    predictor = Predictor.of(Trained("tree-lstm-childsum", tmp_path / "run").read())
    assert predictor.read(json.loads(data["below"].read_text())) == predictor.read(data["below"].read_text())
    for depth in (3, 600, 5_000):
        text = '{"word": "b", "children": [' * depth + '{"word": "a"}' + "]}" * depth
        assert predictor.read(parse_json(text)) == predictor.read(text)
    assert command("train", "tree-lstm-childsum", "--data", data["none"])[2].startswith("autobatch: cannot train on")
    status, out, err = command(*evaluate, data["none"])
    assert (status, out) == (2, "")
    assert "its 1 instance must have labels; autobatch predict" in err
